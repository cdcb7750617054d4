"""What each rank's process tells: where it stands and how it ended."""
