"""Converts a Diagnosis and its Trace to text, JSON, HTML, Perfetto and Flight Recorder."""
