"""What ranks that should have done the same did differently, apart from the operations themselves.

**In**: a `Context`. **Out**: the difference, and whose it is where most agree, or where one alone
left what it had always done.

* `exchange_sizes`: what one member sends is not what another expects (all-to-alls and pairs);
* `crossed_p2p`: a half that is meant for, or waits for, the wrong rank;
* `group_creation_order`: one call of ``new_group`` creates different groups;
* `world_conflicts`: world sizes, ranks and meeting points that contradict each other;
* `callsites`: the first collective that ranks reached from different lines, which is only a clue.

**Rules.** A difference is a fact; that somebody hangs because of it, the graph must show.

**Imported by** `causes` and the engine; imports `graph` and `records`.
"""
