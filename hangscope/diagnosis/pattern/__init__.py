"""What groups of one kind, and a rank's own past, say about what is usual.

**In**: a `Context`, and the place or mismatch in question. **Out**: ranks, or whether something is
usual.

* `sibling_groups` finds groups that run the same program; `deviations` asks them which half of an
  evenly divided mismatch is odd; `majority` says when the larger of two sides is none;
* `uneven_exchanges` finds the stretch of a pipeline in which two ranks did not exchange equally;
* `thread_races` and `unordered_groups` tell where order is a matter of chance.

**Rules.** What is unusual is at most `likely` to be wrong.

**Imported by** `causes` and `faults`; imports `graph` and `records`.
"""
