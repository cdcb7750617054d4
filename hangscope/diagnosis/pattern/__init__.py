"""What ranks did before, and who departed from it."""
