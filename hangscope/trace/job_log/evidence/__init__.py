"""What attempts of a job have shown in a log."""
