"""How the processes ended, in the light of each other: which end came first of its own accord.

**In**: the state of each process by itself, and the frontiers. **Out**: the same states, in which
an end that another one explains is secondary, or nobody's failure at all (`End.TORN_DOWN`).

* `primary_failures.judge_ends` compares the ends: messages that name others, reactions to an
  earlier end on the host, aborts that a log explains;
  `lost_peers` who lost a peer over the network.
* `stops` says who was told to stop from outside, everybody or one rank or host alone;
  `after_standstill` takes back the ends of ranks that were ended because the job stood still.
* `vanished_hosts` finds ends that nobody was left to see; `first_timeout` takes back what ranks did
  after the first of them had timed out; `dead_threads` finds threads that ended before their rank.

**Rules.** An end may explain a later one only, and only what its kind can cause: a launcher reacts
on its own hosts, a closed connection reaches peers. Clocks of hosts differ by up to `MARGIN_NS`.

**Imported by** `engine`, `causes`, `doubts` and `wording`; imports `processes`, `records`, `graph`.
"""
