"""Digests: what the nodes of a large job tell each other about their ranks."""
