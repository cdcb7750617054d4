"""Follows the rings of a running job."""
