"""From the wait-for graph, and from what ranks issued, to the ranks at fault.

**In**: a `Context`. **Out**: `Cause`s, before they are put into words.

* `mismatches` are operations that met and cannot go together;
* `graph_causes` asks the graph: its `sinks` are alive and elsewhere, or have ended (`crashes`,
  `awaited_ranks`), or are `lost`; a place that all have reached is stuck, perhaps with members that
  are `unfit`; `cycles` and `p2p_cycles` decide who closed a circle;
* `departures`, `first_meetings`, `left_over_halves` and `dropped_halves` ask whether
  what is not on record explains the waiting as well;
* `sibling_causes` puts what is one mistake in several groups together, `consequences` drops what
  follows from another cause and puts the first one first.

**Rules.** Every function takes causes and gives causes; none changes one. How much a cause may
claim is said in `doubts`.

**Imported by** the engine and, for single questions, by `no_cause`; imports `differences`,
`pattern`, `faults` and `graph`.
"""
