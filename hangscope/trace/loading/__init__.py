"""Finds the files to read, and reads each of them, whatever its kind.

**In**: paths, URLs, an archive or a log on standard input. **Out**: `Fragment`s, and a line for
each file that was not read.

* `search` and `tasks` list files, `archives` and `remote` bring what lies in archives and behind
  URLs into a `temporary` folder;
* `one_file` reads a file of any kind; `reading` decides where: here, in the worker processes of
  `parallel`, or (`engines`) on a cluster's;
* `pieces` and `titles` put together what several files tell only together; `budget` is what all of
  it may cost.

**Rules.** Whatever a file holds costs a line, never an exception, and no more than the budget.

**Imported by** `load`; imports all readers.
"""
