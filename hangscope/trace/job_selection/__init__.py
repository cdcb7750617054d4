"""Which files are of the job that counts: attempts, lives, jobs beside each other, twins."""
