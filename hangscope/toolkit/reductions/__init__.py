"""The deterministic all-reduce, and checks of the one that a job uses."""
