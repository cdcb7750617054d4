"""Switches parts of the diagnosis off and measures what becomes of its answers."""
