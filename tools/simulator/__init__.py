"""Virtual jobs with known faults, to score the analyzer's verdicts."""
