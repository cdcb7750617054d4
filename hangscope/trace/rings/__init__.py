"""Reads HangScope's own rings."""
