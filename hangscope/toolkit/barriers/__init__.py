"""Barriers and agreement within a group, through the job's store rather than by a collective.

**In**: a process group, or none for all ranks, and how long to wait. **Out**: everybody has come,
or a `BarrierTimeout` that names who is missing and, where its ring can be read, what it was last
doing.

* `meeting` is the protocol: members meet at keys of the job's store, so that a rank that is late
  costs a timeout and blocks no backend; `store_group` and `store_incarnation` find the store of a
  group, and of this attempt of the job;
* `barrier` is the function for users; `agreement` checks that all pass the same arguments;
  `last_seen` reads what a missing rank was doing.

**Rules.** No collective, so any backend and any state of a communicator will do. A timeout is a
deadline for the whole call.

**Imported by** the other parts of `toolkit`, the command line and `hangscope` itself; imports
`trace.rings` to read what a rank was doing.
"""
