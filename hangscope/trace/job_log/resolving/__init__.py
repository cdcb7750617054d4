"""Resolves the evidence of a log once all of its lines are read."""
