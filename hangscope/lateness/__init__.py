"""Lateness: which ranks make the others wait in collectives of a job that moves.

**In**: a `hangscope.trace.model.Trace` of a job that is, or was, running. **Out**: a
`model.Lateness`: seconds lost per rank, host, position in the mesh and call site, and who is late
more often than chance allows.

* `arrivals` finds when each member came to each collective, on one clock;
* `waits` is what that cost the others; `units` adds it up by rank, host and position;
* `stragglers` compares with chance: somebody is always last;
* `heat` is the same over time, for the picture.

**Rules.** Pure functions over numpy columns. Only collectives of which all members' arrivals are
on record count; the first ones of a job, in which communicators are made, do not.

**Imported by** `report`, `monitor`, `tui`, the command line and notebooks; imports `trace`.
"""
