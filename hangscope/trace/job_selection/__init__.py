"""Selects the files of the job, attempt and incarnation that is to be diagnosed.

**In**: the fragments of everything found. **Out**: those of one job at one time, and a line for
each of the others.

* `processes` is what is decided on: a process that lived from .. to, as a rank, on a machine,
  whether its ring is read afterwards or followed;
* `newest_attempt`, `incarnations` and `stale_dumps` tell attempts apart, `concurrent_jobs` jobs,
  `unrelated_logs` logs that only lie beside them;
* `ring_ranks`, `duplicate_ranks` and `local_rank_guesses` settle which rank a process is.

**Rules.** Evidence is left out only for a reason that can be said, and it is said.

**Imported by** `load` and `live`; imports nothing of its neighbours.
"""
