"""Moves rings from local memory into the run directory after the job has ended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def replace_ring_links(directory: Path) -> None:
    """Replace each symlink to a ring in local memory by the ring file itself."""
    for link in directory.glob("*.ring"):
        try:
            if not link.is_symlink():
                continue
            target = link.resolve(strict=True)
            temporary = link.with_suffix(f".{os.getpid()}.copy")
            shutil.copyfile(target, temporary)
            os.replace(temporary, link)
            target.unlink()
        except OSError:
            continue
