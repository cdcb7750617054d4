"""What is not known about a cause, and how much it may claim then."""
