"""Diagnosis and Trace to text, JSON, HTML, Perfetto and Flight Recorder."""
