"""What each rank's process shows by itself: where it is, and how it ended.

**In**: `RankFacts` of one rank. **Out**: a `ProcessState`: its end, what it does or did, its stack,
what the kernel says it waits for, and what the words of its failure are about.

* `process_state.process_of` is the entry. `failures` is the only place that reads messages of
  exceptions; `embedded_exceptions` takes those of helper processes out of messages first.
* `active_thread` picks the thread that shows what the rank is doing; `stacks` knows which frames
  are the user's; `shorten` cuts texts for readers.

**Rules.** One rank at a time: what its end means beside the ends of others is decided in `exits`.
A message says whether it is about another rank; where it does not, the failure is the rank's own.

**Imported by** most of the diagnosis, and by `monitor`; imports `trace`.
"""
