"""Reads PyTorch Flight Recorder dumps of every version.

**In**: a document of plain values. **Out**: `Fragment`s with records as columns, groups, members
and the counters of ``pg_status``.

* `read` is the entry; `wrappers` finds the dumps in what collectors make of them; `dump_rank` says
  whose each is, `hook_recorders` and `states` translate other recorders' words;
* `entry_groups` and `groups` settle the group of every entry, `sequence_numbers`, `counters` and
  `coverage` what its numbers mean, `p2p` coalesced batches, `aborted_operations` what only seems
  finished;
* `columns`, `entry_records`, `intern`, `signatures` and `stacks` turn entries into columns without
  keeping dictionaries; `hangscope_extension` is our own key.

docs/flight-recorder.md has the table of versions, and what is read and written of each.

**Imported by** `loading`, the log readers (which find printed dumps) and `report` (which writes
them).
"""
