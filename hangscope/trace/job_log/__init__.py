"""Job logs: lines, what readers know of them, and what that comes to once all is read."""
