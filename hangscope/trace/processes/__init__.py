"""Observes a local process from outside."""
