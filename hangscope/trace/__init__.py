"""The trace: tables of what a job recorded, and one reader per kind of source.

**In**: paths. Rings, Flight Recorder dumps, job logs, journals, stacks, archives of any of them:
what a file is, its content says, and all of it may be damaged, cut off, hostile or of another job.
**Out**: one `model.Trace`: numpy tables of records and of counters per group and rank, facts about
each rank's process, a `Source` per file, and warnings. `load.load_trace` does this once,
`live.follow.LiveRun` again and again for a job that runs.

* `loading` finds the files and reads them, in worker processes where there are many; `files` knows
  kinds of files, compression and unpickling; `loading.budget` bounds memory, time and disk.
* `rings`, `flight_recorder`, `job_log`, `external_reports`, `nccl`: one package per kind of
  source, each of which turns a file into a `model.Fragment`.
* `job_selection` leaves out what belongs to other jobs, attempts and incarnations.
* `merging` makes one trace of all fragments, on one clock.
* `processes` looks at a process from outside, and is the only place that signals one.

**Rules.** What a file says is a claim: numbers are checked before they become sizes, texts are
cleaned before they are shown, paths are never opened because a dump names them. A file that cannot
be read is a warning, never an exception; `NothingReadable` is for runs of which nothing is left.
No diagnosis here: a reader states what was observed, and does not say who is to blame.

**Imported by** `diagnosis`, `lateness`, `report`, `monitor`, `tui`, `replay`, `toolkit`; imports
`ring`. Its parts import only those before them (tests/test_layers.py has the order).
"""
