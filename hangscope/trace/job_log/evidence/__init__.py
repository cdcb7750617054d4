"""What one attempt of a job has shown in its log, before it becomes fragments.

**In**: notes of rows and readers, line by line. **Out**: the `attempt.Attempt`, whose gaps
`resolving` fills in.

* `attempt`: everything of one start of the job: its ranks, statements, exceptions, ends and stacks;
  a log may hold several attempts, and the newest that tells something counts;
* `notes`: what is kept of one rank, one operation, one exception, one end of a process;
* `processes`: which process is which rank, from prefixes, tables and communicators.

What one kind of line keeps for itself until the log ends is a `part` of the attempt, a class beside
its row: other code does not see it. Belongs here: what several kinds of lines share. No expression
and no judgement: what a line means is settled by its row, what several mean by `resolving`.
"""
