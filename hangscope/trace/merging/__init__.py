"""Merges the fragments of many sources into one trace."""
