"""Where the built plugin lies, and whether it may be loaded from there."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from hangscope.ring.trusted_files import Compiled

SOURCES = Path(__file__).parent / "src"
BESIDE_THE_PACKAGE = Path(__file__).parent / "built"
"""Where a wheel brings it, and ``hangscope compile`` puts it if that place can be written."""
PLACE = "HANGSCOPE_INTERNAL_NCCL_PLUGIN"
"""Environment variable with another directory, for tests."""
_FILES = Compiled(BESIDE_THE_PACKAGE, PLACE)
places = _FILES.places


def file_name(processor: str = "") -> str:
    """The library that these sources make for a processor, by default this machine's."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    return f"libhangscope_nccl_{digest.hexdigest()[:12]}_{processor or platform.machine()}.so"


def built_plugin() -> Path | None:
    """The built library, if there is one in a place from which it may be loaded.

    Raises
    ------
    UntrustedError
        If there is one, but only where others could exchange it; the message says where.
    """
    return _FILES.find(file_name())
