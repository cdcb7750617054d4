"""Settles, once a log has ended, what single lines leave open.

**In**: an `Attempt` with all that was noted. **Out**: the same, completed in place, in the order
that `fragments` gives: exceptions and stacks get their ranks, then ends, then groups, then the
statements that depend on all of them.

* `exceptions`: whose exceptions and stacks are, and which exception of a rank counts;
* `ends`: which rank a launcher means by a local rank, a pid or a task, and who was only stopped;
* `groups`: in which group a timeout was that names none;
* `statements`: whom a barrier, a store or an address waited for, and which ranks the log covers
  only in part.

Each step prefers no answer to a guess: an end whose rank is not clear stays a statement about no
rank. Belongs here: rules that need more than one line. What follows from one is noted by its row.
"""
