"""Rings of a running job, followed."""
