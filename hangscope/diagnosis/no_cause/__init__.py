"""What to report if the graph holds no cause."""
