"""Identifies files by name and content, and reads untrusted ones safely."""
