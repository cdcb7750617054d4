"""Finds the compiled hot path that fits this process."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hangscope.recording.compiled.names import file_name, module_name
from hangscope.recording.warn_once import warn_once
from hangscope.ring.trusted_files import Compiled

BESIDE_THE_PACKAGE = Path(__file__).parent / "built"
"""Where ``hangscope compile`` puts it if that place can be written: an image's users share it."""
PLACE = "HANGSCOPE_INTERNAL_COMPILED"
"""Environment variable with another directory, for tests."""
_FILES = Compiled(BESIDE_THE_PACKAGE, PLACE)
places = _FILES.places
_OFF = frozenset({"0", "off", "no", "false"})


def fitting_file(torch: Any) -> Path | None:
    """The compiled file for this Python, this torch and these sources, if there is one.

    Raises
    ------
    UntrustedError
        If others could have put it there, and there is no other.
    """
    if not any(place.is_dir() for place in places()):
        return None  # without a look at torch
    return _FILES.find(file_name(torch))


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
