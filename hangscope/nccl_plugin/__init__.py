"""The profiler plugin that NCCL loads in every rank: its C sources, its building, its place.

**In**: NCCL's calls of its profiler interface, versions 3 to 6, from the thread that enqueues an
operation and from proxy threads. **Out**: the file `rank_N.device` beside the rank's ring: which
operations a communicator was given, which of them the device has begun and ended, replays of CUDA
graphs, and what proxies are waiting for (`hangscope.ring.device_layout`).

* `src/` is C without dependencies, a few stores per event; it never calls NCCL, CUDA or Python.
* `build` compiles it once, or finds the one that came with the wheel; `background` does that
  beside the start of a job.
* `place` sets `NCCL_PROFILER_PLUGIN` and says by environment which process writes which file. A
  plugin of the user's is left alone.

**Rules.** NCCL's threads are never made to wait: tables are of fixed size, an entry is published
by its last store, and when there is no room the event is counted and dropped. Without a compiler
or on an NCCL that has no such interface the job runs as before, and one line says so.

Imports neither torch nor anything heavy.

**Imported by** `recording` (to switch it on) and `monitor` (to say that it is missing); imports
`ring`.
"""
