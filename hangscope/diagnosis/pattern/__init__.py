"""What ranks did before, and which of them deviated from it."""
