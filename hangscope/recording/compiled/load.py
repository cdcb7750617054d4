"""Finds the compiled hot path that fits this process."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from hangscope.recording.compiled.names import file_name, module_name
from hangscope.recording.warn_once import warn_once
from hangscope.ring.trusted_files import UntrustedError, check_trusted

BESIDE_THE_PACKAGE = Path(__file__).parent / "built"
"""Where ``hangscope compile`` puts it if that place can be written: an image's users share it."""
PLACE = "HANGSCOPE_INTERNAL_COMPILED"
"""Environment variable with another directory, for tests."""
_OFF = frozenset({"0", "off", "no", "false"})


def cache_directory() -> Path:
    """Where it goes if the package's own directory is read-only."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification says so, too
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "hangscope"


def places() -> Iterator[Path]:
    """The directories in which it is looked for, in order."""
    given = os.environ.get(PLACE)
    if given:
        yield Path(given)
        return
    yield BESIDE_THE_PACKAGE
    yield cache_directory()


def fitting_file(torch: Any) -> Path | None:
    """The compiled file for this Python, this torch and these sources, if there is one.

    Raises
    ------
    UntrustedError
        If others could have put it there, and there is no other.
    """
    present = [place for place in places() if place.is_dir()]
    if not present:
        return None
    name, untrusted = file_name(torch), None
    for path in (place / name for place in present if (place / name).is_file()):
        try:
            check_trusted(path)
        except UntrustedError as error:
            untrusted = error
        else:
            return path
    if untrusted is not None:
        raise untrusted
    return None


@functools.cache
def compiled() -> ModuleType | None:
    """The module, imported once; None if it is switched off, was never compiled or cannot be used.

    Called while recording starts, when torch has been imported.
    """
    if os.environ.get("HANGSCOPE_COMPILED", "").strip().lower() in _OFF:
        return None
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None  # it relies on the GIL
    try:
        import torch

        path = fitting_file(torch)
        return None if path is None else _imported(path)
    except Exception as error:
        warn_once(f"the compiled recorder cannot be used, Python's is: {error}")
        return None


def _imported(path: Path) -> ModuleType:
    name = module_name(path)
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
