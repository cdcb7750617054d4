"""Gives the messages of a log one after another, without anything that was added around them.

**In**: bytes, and the words (`readers.registry.telling_words`) without which a block of lines says
nothing. **Out**: `LogLine`s in order: the text, the physical line's number, and what prefixes say:
rank, local rank, task, node, host, process id, level, time.

* `stream` is the entry; `blocks` skips, undecoded, whatever contains none of the words, and keeps
  the end of long runs of announcements; `line_shapes` lets everything that depends only on a line's
  shape (its text with digits as zeros) be worked out once;
* `prefixes` has the grammar: a table of what launchers and collectors put in front, and what it
  states; `host_column` recognises a column that only this log has; `strip_prefixes` applies both,
  finds the head of torch's own messages and parts messages that were glued together;
* `fast_path` does the same by shape for lines that need nothing else, which are nearly all;
* `wrapped` joins what a terminal has wrapped; `truncation` tells whether a log is an excerpt;
* `workers` knows the names that inference engines give their processes.

Belongs here: anything true of lines whatever they mean. A new launcher's prefix is one line of the
table in `prefixes`. What a message states belongs to `rows`; whose a line without a prefix is,
to `job_log.writers`.
"""
