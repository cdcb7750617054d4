"""Saves and restores the state of random number generators of every kind."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

Restore = Callable[[], None]


def snapshot_rng(generators: Sequence[Any] = ()) -> Restore:
    """Save the state of all global generators and of ``generators``.

    Global are torch's on the CPU and on every initialised accelerator, ``random``, and numpy's.
    ``generators`` may hold ``torch.Generator``, ``random.Random``, ``numpy.random.Generator`` and
    ``numpy.random.RandomState``.

    Raises
    ------
    TypeError
        A generator is of an unknown kind.
    """
    import torch

    parts: list[Restore] = [
        _pair(torch.get_rng_state(), torch.set_rng_state),
        _pair(random.getstate(), random.setstate),
    ]
    for name in ("cuda", "xpu"):
        kind: Any = getattr(torch, name, None)
        if kind is not None and kind.is_available() and kind.is_initialized():
            parts.append(_pair(kind.get_rng_state_all(), kind.set_rng_state_all))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        parts.append(_pair(numpy.random.get_state(), numpy.random.set_state))
    parts += [_generator(generator) for generator in generators]

    def restore() -> None:
        for part in parts:
            part()

    return restore


def _pair(state: Any, put_back: Callable[[Any], object]) -> Restore:
    def restore() -> None:
        put_back(state)

    return restore


def _generator(generator: Any) -> Restore:
    import copy

    if hasattr(generator, "get_state") and hasattr(generator, "set_state"):
        return _pair(generator.get_state(), generator.set_state)
    if hasattr(generator, "getstate") and hasattr(generator, "setstate"):
        return _pair(generator.getstate(), generator.setstate)
    bits = getattr(generator, "bit_generator", None)
    if bits is not None:
        state = copy.deepcopy(bits.state)

        def restore() -> None:
            bits.state = state

        return restore
    raise TypeError(f"{type(generator).__name__} is no random generator that can be put back")
