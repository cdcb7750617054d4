"""Kernel messages about processes stuck in the kernel, and about unresponsive storage.

A rank that reads or writes there arrives late or never, and cannot even be killed. A pid may
identify the rank. Nobody is accused by it, because file systems recover.
"""

from __future__ import annotations

from hangscope.trace.job_log.rows.row import row
from hangscope.trace.job_log.rows.statements import claim

# fmt: off
ROWS = (
    row("hung-task", "remark",
        r"INFO: task (\S{1,40}):(?P<pid>\d{1,9}) blocked for more than \d+ seconds",
        claim("other", blocked=True),
        "INFO: task python3:4711 blocked for more than 120 seconds."),
    row("silent-storage", "remark",
        r"nfs: server \S+ not responding|LustreError: .{0,300}(?:rc = -1\d\d|timed out|was evicted)"
        r"|ptlrpc_expire_one_request|ceph: mds\d+ (?:hung|caps stale)|"
        r"beegfs: .{0,200}(?:timed out|offline)", claim("other", blocked=True),
        "nfs: server filer1 not responding, still trying"),
)
# fmt: on
