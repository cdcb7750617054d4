"""Readers of log lines, one file per kind of line."""
