"""The kinds of lines that are understood, one row each.

**In**: a line that the row's expression matches (`row.Said`), and the `Attempt` to note it in.
**Out**: notes in that attempt, and whether another row may need the line; a row whose report
goes on below returns a generator that is sent the following lines.

A row has a name, one of a dozen kinds of statements, its expression (or several wordings), what to
do with it, and lines from real logs. The texts that a line must contain follow from the expression
(`literals`), so a row is all there is to add: its examples are the tests, alone, among other lines
and behind every prefix, and make its line of docs/log-lines.md. Named groups say how a line numbers
(`rank` of the job, `place` inside a group, `local` inside a node, `task`, `pid`); where they say
all, `statements` has what to do.

* `table` lists all rows in the order in which they are offered a line;
* `watchdog`, `overdue`: timeouts and counters of torch's process groups; `comparisons`, `fr_trace`:
  where torch itself compared ranks; `communicators`, `gloo`, `rendezvous`, `ddp`,
  `kernel_timeouts`, `devices`,
  `frameworks`, `phases`: messages of one library each;
* `launcher`, `other_launchers`, `pods`: about processes, nodes and ranks, and how they ended.

Belongs here: one line, or a report that one line begins. What takes following each writer over many
lines (tracebacks, stacks, tables) belongs to `readers`.
"""
