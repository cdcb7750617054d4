"""Follows the rings of a running job.

**In**: a run directory that other processes write to. **Out**: a `Trace` for each look, for which
only records that may have changed are read again. What is read becomes rows and facts as afterwards
(`rings`, `merging`).

* `follow` (`LiveRun`) is the entry; `rings` keeps the files of the followed attempt open, by
  descriptor and without following links; `own_run` says which rings are of the run that a monitor
  was started for: a planted one changes nothing;
* `slots` keeps the newest records of a ring; `facts` compares two observations of a process.

**Imported by** `monitor`, `tui` and ``analyze``; imports `rings`, `processes`, `job_selection` and
`merging`.
"""
