"""Checks of a launch, before the job starts and inside it; one file per family."""
