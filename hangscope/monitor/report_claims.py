"""Each cause is reported once, even when several monitors share a run directory.

Monitors of several nodes may share a directory. Whichever creates the cause's marker file first
reports it; the others stay silent. If the directory is not writable, every monitor reports.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hangscope.monitor.report_policy import Cause
from hangscope.ring.run_directory import opened
from hangscope.trace.live.open_ring import RunKey


def claim_report(directory: Path, key: RunKey | None, cause: Cause, started_ns: int = 0) -> bool:
    """Claim a cause; True if the caller is the one to report it.

    ``started_ns`` is the start time of the job's lowest rank. It tells this job from an earlier one
    with the same run id, which may have ended from the same cause.
    """
    # Nodes may count a job's attempts differently; its start time is the same for all of them.
    life = key.run_id if key is not None and started_ns else key
    text = repr((life, started_ns, cause)).encode()
    name = f".said-{hashlib.blake2b(text, digest_size=8).hexdigest()}"
    try:
        with opened(directory) as folder:
            try:
                os.close(folder.new_file(name))
            except FileExistsError:
                os.close(folder.own_file(name))
                return False  # whoever else may write here silences nobody
    except OSError:
        return True
    return True
