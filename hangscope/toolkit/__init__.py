"""Prevention: barriers, environment, launch, warm-up, deterministic reduction, and the doctor.

**In**: calls from a training script, or a command line and a run for ``hangscope doctor``.
**Out**: the same thing done so that it cannot hang silently: an exception that names ranks, in
time, instead of a timeout that names none.

* `barriers`: a barrier and an agreement through the job's store, with the names of who is missing
  and what each was doing.
* `environments`: variables of NCCL, Gloo and torch that help or harm, with a level and a fix.
* `launching`: rank and world from any launcher, `init_distributed` that names missing ranks.
* `warmup`: communicators, replicas and the first steps, so that what differs shows at the start.
* `reductions`: an all-reduce with the same bits on every run, and a check of the job's own.
* `doctor`: conditions D1 to D23 of docs/playbook.md, before a job starts, inside it, and in a run.

**Rules.** Every wait has a limit. Collectives are never used to find out whether collectives work:
ranks meet in the store. A function leaves the job as it was, or raises on all ranks alike.
docs/toolkit.md has what each promises.

**Imported by** training scripts, through ``import hangscope``, and by the command line; imports
`ring`, `trace` and `recording`, and torch inside functions. Its parts do not import each other
except downwards (tests/test_layers.py).
"""
