"""A deterministic all-reduce, and checks of the all-reduce that a job uses."""
