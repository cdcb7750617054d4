"""Fragments of many sources become one trace."""
