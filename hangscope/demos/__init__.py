"""Real jobs with real faults: what ``hangscope demo`` launches."""
