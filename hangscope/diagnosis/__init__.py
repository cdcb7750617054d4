"""Trace to Diagnosis: small pure functions, one file per kind of cause."""
