"""The other process: follows the rings of a job and decides when to speak."""
