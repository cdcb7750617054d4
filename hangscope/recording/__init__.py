"""Inside the training process: hook, recorder, stacks, lifecycle, watcher.

**In**: every call of a ``c10d::`` operator, whoever makes it; the job's own ``hangscope.record``
and ``hangscope.phase``; the end of the process. **Out**: the ring of this rank, and nothing else:
no thread of the job waits, no exception leaves, no result changes.

* `enable` decides at the end of ``import torch`` whether this process records; `settings` reads
  the variables, `session` switches everything on and off together, `lifecycle` sees the end.
* `hook` registers kernels at the dispatcher, so DDP, FSDP and user code are seen alike; `compiled`
  is the same in C++. `operations`, `signatures`, `shapes` and `plans` turn a call's arguments into
  a record, once per kind of call; `recorder` writes it.
* `groups`, `group_info`, `init_arguments` know the process groups and this process's place.
* `completion`, `counters`, `native_status`, `device_events`: which operations have ended, as far
  as the backend tells. `store_waits`, `work_waits`, `phases`: long calls that are no operations.
* `watcher` is a daemon thread: heartbeat, completions, stacks (`stacks`, `stack_samples`).
* `patches` replaces attributes of torch, always by `patches.Patches`, which puts them back.

**Rules.** At the first failure of its own the recorder stops, says so once, and the job goes on.
Memory is bounded (`limits`). A child of the rank never writes into its ring. The cost is measured
by ``make bench``: microseconds a collective.

**Imported by** the job itself and `toolkit`; imports `ring` and `nccl_plugin`, and torch. A report
is imported only inside the function that dumps one.
"""
