"""Rank and world of this process, rendezvous, start and end of a distributed job."""
