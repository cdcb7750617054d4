"""Causes put into words."""
