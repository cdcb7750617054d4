"""The profiler plugin that NCCL loads in every rank: its C sources, its building, its place.

Imports neither torch nor anything heavy.
"""
