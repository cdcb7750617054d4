"""Warm-up: communicators, replicas and the first training steps."""
