"""The monitor process: follows a job's rings on one node and decides when to report.

**In**: the run directory of a job, which ranks live here, and variables (`config`). **Out**: lines
in the job's log when it hangs, crashes or is about to; a journal for whoever analyses it
afterwards; on request (`HANGSCOPE_ON_HANG=kill`) the end of the job.

* `watch` is the loop, `schedule` when it looks closely; a look is a `hangscope.trace.live` trace
  and its diagnosis.
* `report_policy` decides whether a diagnosis is said: pure logic over successive looks. `patience`
  and `notices` learn from the job how long a wait is usual.
* `local_ranks`, `processes`, `rank_state`, `starting_ranks`, `sibling_ranks`, `leaving_ranks`:
  which ranks exist on this node, how they are and how they end.
* `other_nodes`, `node_reports`, `sibling_runs`: what monitors of other nodes have seen.
* `journal` keeps what only somebody outside can see: ends, signals, repeated looks.
* `hardware` asks devices and links about themselves, once, after a hang.

**Rules.** It never slows, stops or signals what the kernel does not show to be the job's. It
survives the job and the launcher, and ends when the ranks do. Whoever is at fault is the
diagnosis's answer; here it is decided only whether to wait, to say it, and to whom.

**Imported by** nobody: it is started as a process, by a rank or by ``hangscope run``. Imports
everything that analysis has, but neither torch nor `recording`.
"""
