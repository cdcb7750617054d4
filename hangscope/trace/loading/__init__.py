"""Finds the files to read, and reads each of them, whatever its kind."""
