"""Job logs: lines, what readers know of them, and what they come to once all is read."""
