"""What each rank's process shows: where it is and how it ended."""
