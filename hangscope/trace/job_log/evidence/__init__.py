"""What one attempt in a log has shown: of its ranks, its processes, and the job as a whole."""
