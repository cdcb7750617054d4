"""What the logs of several ranks tell together and none of them alone.

NCCL announces operations, and communicators being created, in the log of the process concerned. One
log per rank shows nothing of the others; so the lines concerned are read once more, as one log.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

from hangscope.trace import formats
from hangscope.trace.files import sniff
from hangscope.trace.loading.one_file import Task
from hangscope.trace.model import Fragment

_MOST_BYTES = 64 << 20
"""Of all logs together; of longer ones, the ends are read."""
_CONCERNED = (
    b"opCount",
    b"Init START",
    b"Init COMPLETE",
    b"Connected all rings",
    b"NCCL INFO Channel ",
)


def read_together(tasks: Sequence[Task], fragments: Sequence[Fragment]) -> list[Fragment]:
    """Fragments with what these logs tell together, in addition to those of each."""
    paths = {f.source.path for f in fragments if f.in_pieces}
    parts = [t for t in tasks if t.shown in paths and t.kind.name == formats.LOG and not t.standard]
    if len(parts) < 2:
        return []
    from hangscope.trace.job_log.read import read_job_log

    most = _MOST_BYTES // len(parts)
    text = b"".join(b"==> %s <==\n%s\n" % (t.shown.encode(), _lines(t, most)) for t in parts)
    found = read_job_log(io.BytesIO(text), path=f"{len(parts)} logs together")
    return [replace(fragment, warnings=()) for fragment in found]


def _lines(task: Task, most: int) -> bytes:
    """The lines concerned of one log, at most so many bytes from its end."""
    kept: list[bytes] = []
    try:
        with sniff.open_stream(task.path, task.kind.compression) as stream:
            kept = [line for line in stream if any(words in line for words in _CONCERNED)]
    except OSError:
        return b""
    return b"".join(kept)[-most:]
