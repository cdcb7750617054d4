"""What to say where the graph holds no cause."""
