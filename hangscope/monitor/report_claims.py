"""One voice a cause, also where several monitors see the same run directory.

Monitors of several nodes may share a directory. Whoever creates a cause's file first says it; the
others keep quiet. Where the directory cannot be written, each speaks for itself.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hangscope.monitor.report_policy import Cause
from hangscope.trace.live.rings import RunKey


def claim(directory: Path, key: RunKey | None, cause: Cause, started_ns: int = 0) -> bool:
    """Whether the caller is the one to say it.

    ``started_ns`` is when the job's lowest rank began: one that was there before under the same
    name may have ended by the same cause.
    """
    # Nodes may count the attempts of a job differently; when it began is the same for all.
    life = key.run_id if key is not None and started_ns else key
    text = repr((life, started_ns, cause)).encode()
    path = directory / f".said-{hashlib.blake2b(text, digest_size=8).hexdigest()}"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    except OSError:
        return True
    return True
