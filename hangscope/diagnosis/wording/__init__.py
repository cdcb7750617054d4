"""Turns causes into report texts."""
