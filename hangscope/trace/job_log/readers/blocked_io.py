"""Kernel messages about processes stuck in the kernel, and about unresponsive storage.

A rank that reads or writes there arrives late or never, and cannot even be killed. A pid may
identify the rank. Nobody is accused by it, because file systems recover.
"""

from __future__ import annotations

import re

from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import Evidence

_HUNG_TASK = re.compile(r"INFO: task (\S{1,40}):(\d{1,9}) blocked for more than \d+ seconds")
_SILENT = re.compile(
    r"nfs: server \S+ not responding|LustreError: .{0,300}(?:rc = -1\d\d|timed out|was evicted)|"
    r"ptlrpc_expire_one_request|ceph: mds\d+ (?:hung|caps stale)|"
    r"beegfs: .{0,200}(?:timed out|offline)"
)
WORDS = (
    "blocked for more than", "not responding", "LustreError", "ptlrpc_expire", "ceph: mds",
    "beegfs: ",
)  # fmt: skip


def read(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Record what such a line says. Returns whether it was one."""
    found = _HUNG_TASK.search(line.text)
    if found:
        pid, host = int(found[2]), line.host or ""
        words = f"{pid} {host}"
        evidence.claim(
            "other", line, at_ns, certain=False, words=words, pid=pid, host=host, blocked=True
        )
    elif _SILENT.search(line.text):
        evidence.claim("other", line, at_ns, certain=False, blocked=True)
    else:
        return False
    return True
