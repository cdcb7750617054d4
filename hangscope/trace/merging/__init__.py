"""Merges the fragments of many sources into one trace.

**In**: `Fragment`s of one job, several of which may describe the same rank. **Out**: a `Trace`.

* `merge` is the entry; `records` merges what is known of each operation, `facts` what is known of a
  process, field by field; `groups` matches process groups, whose names repeat;
* `log_clock` puts the times of logs on the records' clock, `pid_attribution` finds the rank of a
  process that one file knows by its id alone, `host_names` tells machines of one name apart.

**Rules.** The order of the fragments does not matter. Where sources disagree, the more trusted one
counts (`hangscope.trace.formats`).

**Imported by** `load`, `live`, `digests` and the readers of logs; imports no reader.
"""
