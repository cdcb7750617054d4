"""Reads what is no single line: each follows its writers from line to line.

**In**: every line whose shape a reader may know, and those that may continue what it has begun.
**Out**: notes in the `Attempt`: exceptions with frames, stacks of processes, ends, operations.

* `registry` offers each line to whoever may know its shape, rows and readers alike;
* `tracebacks`: Python's, interleaved, chained, in boxes and in groups;
* `stacks`: py-spy, faulthandler, pystack, gdb's `py-bt`, torch's debug server; `native`: the frames
  of debuggers, as far as they tell in which call of a library a process stands;
* `elastic_table`: torchrun's table of failures;
* `ras`: NCCL's report on its communicators;
* `debug_traces`: operations announced as they are issued, which tell something only together and
  at the end.

Belongs here: a form that needs memory of its own per writer or for the whole log. Whatever one
expression can tell of one line is a row (`rows`).
"""
