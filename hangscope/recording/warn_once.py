"""The recorder's only output in a training process: single lines on stderr, each printed once."""

from __future__ import annotations

import os
import sys

_said: set[str] = set()


def warn_once(message: str) -> None:
    """Print ``[hangscope] message`` once per process and message; never raises."""
    try:
        if message in _said:
            return
        _said.add(message)
        rank = os.environ.get("RANK")
        where = f"rank {rank}: " if rank else ""
        # As `hangscope.report.escape.plain`, which is not to be imported here: it may be late.
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in f"{where}{message}")
        sys.stderr.write(f"[hangscope] {line}\n")
        sys.stderr.flush()
    except Exception:
        pass
