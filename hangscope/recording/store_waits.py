"""Waits in the job's key-value store, which bypass the dispatcher and may last for ever.

A rank in ``store.get("checkpoint/7")`` waits for some rank to set that key. The wait is recorded as
a phase with the key as its detail, so that readers recognise it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from hangscope.recording.patches import Patches
from hangscope.recording.phases import WRAPPED, PhaseStack

METHODS = ("get", "multi_get", "wait")
"""Methods of a store that return only when a key is there."""
MAX_KEYS = 512
"""Limit on keys put into the ring, which keeps them for good; later waits come without a key."""
MAX_KEY = 120


def watch_stores(
    patches: Patches,
    phases: Callable[[], PhaseStack | None],
    guard: Callable[[BaseException], None],
) -> None:
    """Record the main thread's waits in a store as phases.

    Waits inside a call that is already a phase (`WRAPPED`) are not recorded.
    """
    import torch.distributed as dist

    keys: set[str] = set()
    base = getattr(dist, "Store", None)
    if base is None:
        return
    for owner in (base, *_subclasses(base)):
        for name in METHODS:
            if name in vars(owner):
                patches.replace(owner, name, _phase(vars(owner)[name], name, phases, guard, keys))


def _subclasses(owner: type) -> list[type]:
    """All of torch's own classes derived from one."""
    found: list[type] = []
    children: list[type] = type.__subclasses__(owner)
    for child in children:
        if child.__module__.startswith("torch."):
            found += [child, *_subclasses(child)]
    return found


def _phase(
    original: Any,
    name: str,
    phases: Callable[[], PhaseStack | None],
    guard: Callable[[BaseException], None],
    keys: set[str],
) -> Any:
    main = threading.main_thread().ident

    @functools.wraps(original)
    def call(store: Any, *args: Any, **kwargs: Any) -> Any:
        stack = key = None
        try:
            stack = phases() if threading.get_ident() == main else None
            if stack is not None and not stack.is_in(WRAPPED):
                key = stack.enter(f"store.{name}", _key_of(args, kwargs, keys))
        except Exception as error:
            guard(error)
        try:
            return original(store, *args, **kwargs)
        finally:
            try:
                if stack is not None and key is not None:
                    stack.leave(key)
            except Exception as error:
                guard(error)

    return call


def _key_of(args: tuple[Any, ...], kwargs: dict[str, Any], keys: set[str]) -> str:
    """The (first) key that is waited for; empty once `MAX_KEYS` keys are in the ring."""
    given = args[0] if args else kwargs.get("key", kwargs.get("keys", ""))
    if isinstance(given, (list, tuple)):
        given = given[0] if given else ""
    if not isinstance(given, str):
        return ""
    text = given[:MAX_KEY]
    if text not in keys:
        if len(keys) >= MAX_KEYS:
            return ""
        keys.add(text)
    return text
