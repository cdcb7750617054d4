"""Follows the rings of a running job.

**In**: a run directory that other processes write to. **Out**: a `Trace` for each look, for which
only what has changed is read again.

* `follow` (`LiveRun`) is the entry; `rings` keeps the files of the followed attempt open, by
  descriptor and without following links; `own_run` says which rings are of the run that a monitor
  was started for: a planted one changes nothing;
* `table` holds the records of many ranks as one table; `facts` reads a process again only if its
  facts may have changed.

**Imported by** `monitor`, `tui` and ``analyze``; imports `rings`, `processes`, `job_selection` and
`merging`.
"""
