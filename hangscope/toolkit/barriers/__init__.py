"""Barriers and agreement within a group, through the job's store rather than by a collective."""
