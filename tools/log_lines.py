"""The lines of job logs that HangScope reads, as a page of the documentation.

python -m tools.log_lines          # writes docs/log-lines.md
"""

from __future__ import annotations

from pathlib import Path

from hangscope.trace.job_log.rows.row import Row
from hangscope.trace.job_log.rows.table import ROWS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "log-lines.md"
_NUMBERS = ("rank", "place", "local", "task", "pid")
_HEAD = """# Lines of job logs

Every kind of line that `hangscope analyze` reads, one row each. Prefixes of launchers and
collectors are taken off before. Tracebacks, stacks, torch elastic's failure table, NCCL's RAS
reports and operations that are announced as they are issued are read by code of their own
(`hangscope/trace/job_log/readers`). Made by `python -m tools.log_lines`.

A new kind of line is one row in `hangscope/trace/job_log/rows`: its expression, what it states,
what to do with it, and lines from real logs, which are its tests.

| line | states | numbers | since | for example |
|---|---|---|---|---|
"""
_REMOVED = """
## No longer read

Kinds of lines that no recorded log and no public report stands behind have been removed:

| was | printed by |
|---|---|
| `_pmiu_daemon(SIGCHLD): [NID ...] PE RANK 3 exit signal Killed` | Cray's aprun |
"""
_LONGEST = 160


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(map(_line, ROWS)) + _REMOVED


def _line(row: Row) -> str:
    numbers = ", ".join(name for name in _NUMBERS if name in row.line.groupindex)
    example = row.examples[0]
    shown = example if len(example) <= _LONGEST else example[: _LONGEST - 3] + "..."
    quoted = "``" + shown.strip().replace("|", "\\|") + "``"
    return f"| {row.id} | {row.states} | {numbers} | {row.since} | {quoted} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
