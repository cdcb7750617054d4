"""Barriers and agreement of a group, through the store of its job and never by a collective."""
