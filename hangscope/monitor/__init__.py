"""The monitor process: follows a job's rings and decides when to report."""
