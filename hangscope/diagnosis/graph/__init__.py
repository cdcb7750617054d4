"""The wait-for graph as data: places, who waits there, and for whom.

**In**: a `Trace`, its `Frontiers` and the state of each process. **Out**: `Place`s, which
`waiting.graph_builder` puts into one `Waits`.

* `places` has the two types, and the queries on the graph; `components` finds its sinks, and the
  cycles that would stand if lost ranks came; `cycle_graph` finds the ranks that break a cycle;
* one module for each kind of place but collectives: `p2p_places` (and `logged_batches`, of which a
  log names no peer), `phase_places` (meetings of all ranks), `store_places`, `lock_places`.

**Rules.** A place says only who has come, who has not, and of whom nothing is known; what that
means for anybody is decided in `causes`. Ranks to places and places to ranks: the graph stays
linear in the ranks.

**Imported by** everything behind it; imports `records` and `processes`.
"""
