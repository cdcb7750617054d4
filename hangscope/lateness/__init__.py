"""Lateness: which ranks make the others wait in collectives of a job that moves.

In goes a `hangscope.trace.model.Trace`, out comes a `hangscope.lateness.model.Lateness`: seconds
lost per rank, host, position in the mesh and call site, and who is late more often than chance
allows. Pure functions over numpy columns; reports, the command line and notebooks import it, it
imports only `hangscope.trace`.
"""
