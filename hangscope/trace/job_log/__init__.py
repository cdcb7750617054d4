"""Reads what jobs print: logs, stacks, reports and tables, often all that is left of a hang.

**In**: a stream of bytes of any size, its name, and the year of its lines, which state none.
**Out**: `Fragment`s, one per rank that the text mentions and one for everything else (rank -1),
with operations and counters as rows marked as inferred (`Flag.SYNTHETIC`) and statements as claims.

* `lines` gives one message after another: its text, whose it is, and when it was written;
* `rows` is the table of known lines, one row per kind: what it looks like, what it states, real
  examples. The docs page and most tests are made of it (docs/log-lines.md);
* `readers` are the few kinds that are no single line: tracebacks, stacks, tables, NCCL's RAS;
* `evidence` is what an attempt of the job has shown so far, which rows and readers fill in;
* `resolving` settles, once the text has ended, what only several lines together tell: whose an
  exception is, in which group a timeout was, how a process ended;
* `fragments` turns the result into the tables of the trace.

`read` drives this line by line; `writers` settles whose a line is where its prefix does not say.

**Rules.** A line is a claim of whoever wrote it. Memory is bounded whatever the text says: numbers
have a most, lists have a most. A rank is named only if a line names it or several lines leave no
other; a rank inside a group, a node or a scheduler's step is not taken for a rank of the job.

**Imported by** `loading`, `external_reports` (error files are tracebacks), and by `diagnosis` for
the words of messages that exceptions carry.
"""
