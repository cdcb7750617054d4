"""Selects the files of the job, attempt and incarnation that is to be diagnosed."""
