"""What the records and counters of a trace show, before anybody asks who is to blame.

**In**: a `Trace`. **Out**: tables and predicates over its columns.

* `frontier` reduces millions of records to one row per rank and group: issued, finished, pending;
  every later step works on that. `blocking_calls` and `kinds` say per record what an operation is.
* `mismatch` finds the first number in a group under which members issued what `agreement` says
  cannot go together; `pairing` finds the other half of each send and receive.
* `counters`, `refused_calls` and `unobserved_p2p` give every source's numbers, refusals and
  completions the meaning that a ring's have.
* `coverage` says how far back the records go and who left none; `pace` how fast the job moved.

**Rules.** A fixed number of numpy passes over the records; Python loops run over ranks, groups and
what is unfinished. What no source shows is unknown, neither done nor open. No processes, no causes.

**Imported by** all other packages of the diagnosis; imports `trace`.
"""
