"""Runs another program with torch's own Flight Recorder, which writes its dump while it hangs.

``HANGS_DUMPS`` is the folder, ``HANGS_DUMP_AFTER_S`` when.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from pathlib import Path


def dump_later() -> None:
    """What a watchdog does when a timeout strikes."""
    import torch

    time.sleep(float(os.environ["HANGS_DUMP_AFTER_S"]))
    data = torch._C._distributed_c10d._dump_fr_trace(True, True, False)
    target = Path(os.environ["HANGS_DUMPS"]) / f"comm_lib_trace_rank_{os.environ['RANK']}"
    part = target.with_name(f".{target.name}")
    part.write_bytes(data)
    part.rename(target)


threading.Thread(target=dump_later, daemon=True).start()
del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
