"""Reads job logs: lines, the evidence in them, and what it amounts to once all lines are read."""
