"""Brings rings out of local memory into the run directory once the job has ended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def mirror(directory: Path) -> None:
    """Replace links to rings in local memory by the files themselves, for later readers."""
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
