"""Reads PyTorch Flight Recorder dumps of every version and dialect."""
