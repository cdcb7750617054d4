"""What the evidence of a log comes to once all of its lines are read."""
