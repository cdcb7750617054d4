"""Virtual jobs with known faults: what the analyzer's blame is scored on."""
