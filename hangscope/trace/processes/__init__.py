"""Observes a local process from outside.

**In**: a process id and what is claimed of it (start time, boot, namespace). **Out**: whether it is
alive and in which state, what the kernel says it waits for, what is at the other end of it; or that
nothing can be seen.

* `process` and `suspension` say in which state it is; `kernel_waits`, `file_locks`,
  `shared_memory`, `sockets` and `descriptors` for what or whom it waits; `cgroups` who froze or
  killed it; `procfs` reads the small files behind all of that;
* `signals` is the only place that signals a process HangScope has not started.

**Rules.** What cannot be observed is unknown, not gone. A process is looked at only after the
kernel has shown that it is the one that was meant.

**Imported by** `live`, `rings`, `monitor` and others; imports `ring` alone.
"""
