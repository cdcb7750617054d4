"""Trace tables, and one reader per kind of source."""
