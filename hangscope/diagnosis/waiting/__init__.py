"""Where each rank waits, for whom, and which of these waits count as a hang.

**In**: frontiers, the halves of pairs and the states of processes. **Out**: `graph.places.Waits`,
the graph rank → place → rank, without the waits that prove nothing.

* `graph_builder` builds it group by group from `collective_facts`, with the places of pairs,
  phases, keys and locks from `graph`; `relays` adds members that cannot pass on their part, and
  `device_places` and `device_not_started` what only devices or their counters show.
* `wait_duration` keeps the waits that lasted; `without_timeout` says which need no time.
* `early_dumps` and `snapshots` recognise dumps of a job that still moved.

**Rules.** A rank that issued an operation waits in it until something shows that it has finished;
members that left nothing are unknown, not absent. The graph accuses nobody: `causes` reads it.

**Imported by** `engine`, `doubts` and `no_cause`, and by `monitor`; imports `graph`.
"""
