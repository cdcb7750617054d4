"""The names of compiled files: each says which sources, Python and torch build it fits."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hangscope.recording.compiled.constants import constants_header

SOURCES = Path(__file__).parent / "src"


def key_of(torch: Any) -> str:
    """A name for what a compiled module fits: sources, Python and torch build.

    Parameters
    ----------
    torch:
        The module ``torch``.
    """
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    for part in (
        constants_header(), sys.implementation.cache_tag, sysconfig.get_platform(),
        torch.__version__, str(torch.version.git_version),
    ):  # fmt: skip
        digest.update(f"\0{part}".encode())
    return digest.hexdigest()[:16]


def file_name(torch: Any) -> str:
    """The file name of the module that fits this process."""
    return f"hot_path_{key_of(torch)}{sysconfig.get_config_var('EXT_SUFFIX')}"


def module_name(path: Path) -> str:
    """The name under which a compiled file is imported."""
    return path.name.partition(".")[0]
