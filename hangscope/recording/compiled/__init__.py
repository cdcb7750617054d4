"""The hot path in C++, compiled once for the torch at hand; without it, Python does the same."""
