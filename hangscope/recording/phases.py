"""Phases: what a rank is doing outside collectives.

Above all, the calls that make and destroy process groups: they wait in the store rather than in the
dispatcher, so they are wrapped by name.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Collection
from typing import Any

from hangscope.recording.init_arguments import declaration
from hangscope.ring.writer import RingWriter

WRAPPED = (
    "init_process_group",
    "new_group",
    "split_group",
    "shrink_group",
    "destroy_process_group",
)
"""Functions of ``torch.distributed.distributed_c10d`` that may hang outside the dispatcher."""

MAX_NUMBER = 4096
"""Calls of ``new_group`` that get a number; each takes some space in the ring."""
MAX_MEMBERS = 512
"""Members listed in a phase's detail for a group that only its members create."""


class PhaseStack:
    """The open phases of this process, mirrored into the ring."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        # In order of opening. No lock: other threads and signal handlers may interrupt anywhere.
        self._open: dict[object, tuple[int, int, int]] = {}
        self._version = 0
        self._groups_asked_for = 0

    def enter(self, name: str, detail: str = "") -> object:
        """Open a phase; returns the key for `leave`."""
        key = object()
        ring = self._ring
        entry = (ring.text(name), ring.text(detail) if detail else 0, time.time_ns())
        self._open[key] = entry
        self._publish()
        return key

    def is_in(self, names: Collection[str]) -> bool:
        """Whether a phase with one of these names is open."""
        ids = {self._ring.text(name) for name in names}
        return any(name in ids for name, _, _ in list(self._open.values()))

    def restart_group_count(self) -> None:
        """A default group is about to be created: restart counting calls of ``new_group``."""
        self._groups_asked_for = 0

    def number(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Number of this call of ``new_group`` since the default group was created; 0 for others.

        Groups that only their members create (``use_local_synchronization``) are not counted.
        """
        if name != "new_group" or _is_local(args, kwargs):
            return 0
        self._groups_asked_for += 1
        return self._groups_asked_for if self._groups_asked_for <= MAX_NUMBER else 0

    def leave(self, key: object) -> None:
        """Close a phase, even if other threads have opened phases since."""
        self._open.pop(key, None)
        self._publish()

    def _publish(self) -> None:
        for _ in range(8):  # repeat if another thread interfered
            self._version = version = self._version + 1
            self._ring.set_phases(list(self._open.values()))
            if self._version == version:
                return


class Patches:
    """Monkey patches of other modules' attributes, which can be undone."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute, remembering the old one."""
        self._replaced.append((owner, name, getattr(owner, name), value))
        setattr(owner, name, value)

    def replace_function(self, name: str, wrap: Callable[[Any], Any]) -> None:
        """Wrap a function of ``distributed_c10d`` wherever ``torch.distributed`` imported it."""
        home = sys.modules["torch.distributed.distributed_c10d"]
        original = getattr(home, name, None)
        if original is None:
            return
        wrapper = wrap(original)
        for module_name, module in list(sys.modules.items()):
            if (
                module_name.startswith("torch.distributed")
                and getattr(module, "__dict__", {}).get(name) is original
            ):
                self.replace(module, name, wrapper)

    def undo(self) -> None:
        """Restore every attribute that nobody else has replaced since."""
        for owner, name, old, new in reversed(self._replaced):
            if getattr(owner, name, None) is new:
                setattr(owner, name, old)
        self._replaced.clear()


def wrap_phase(
    phases: Callable[[], PhaseStack | None],
    name: str,
    before: Callable[[tuple[Any, ...], dict[str, Any]], None],
    after: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
    guard: Callable[[BaseException], None],
) -> Callable[[Any], Any]:
    """A decorator that makes calls phases. Errors of ``before`` and ``after`` go to ``guard``."""

    def decorate(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            stack = key = None
            try:
                stack = phases()
                before(args, kwargs)
                if stack is not None:
                    number = stack.number(name, args, kwargs)
                    key = stack.enter(name, _detail(name, number, args, kwargs))
            except Exception as error:
                guard(error)
            try:
                result = original(*args, **kwargs)
            finally:
                try:
                    if stack is not None and key is not None:
                        stack.leave(key)
                except Exception as error:
                    guard(error)
            try:
                after(result, args, kwargs)
            except Exception as error:
                guard(error)
            return result

        return call

    return decorate


def _detail(name: str, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What tells such calls apart: the number and the ranks of a new group."""
    local = name == "new_group" and _is_local(args, kwargs)
    words = [f"call {number}"] if number else ["members only"] if local else []
    ranks, desc = kwargs.get("ranks", args[0] if args else None), kwargs.get("group_desc")
    if isinstance(ranks, (list, tuple, range)):
        shown = MAX_MEMBERS if local else 16  # only the members tell local groups apart
        words.append("ranks " + ",".join(map(str, ranks[:shown])) + (",..." * (len(ranks) > shown)))
    elif isinstance(desc, str):
        words.append(desc)
    return ", ".join(words)


def _is_local(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of ``new_group`` is made by the members only."""
    position = 4
    return bool(
        kwargs.get("use_local_synchronization", args[position] if len(args) > position else False)
    )


def start_on_init() -> None:
    """Start recording when this process calls ``init_process_group``, if it ever does."""
    import torch.distributed.distributed_c10d  # noqa: F401

    patches = Patches()

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            return _start_and_call(patches.undo, args, kwargs)

        return init_process_group

    patches.replace_function("init_process_group", wrap)


def start_in_child(
    wrap: Callable[[Any], Any], pid: int, leave: Callable[[], None]
) -> Callable[[Any], Any]:
    """Extend ``wrap``: a forked child of process ``pid`` that becomes a rank records by itself.

    A parent whose children take part in the job is a launcher. ``leave`` removes the parent's
    recording from the child.
    """

    def wrap_both(original: Any) -> Any:
        wrapped = wrap(original)

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            import torch.distributed as dist

            if os.getpid() == pid or dist.is_initialized():
                return wrapped(*args, **kwargs)
            return _start_and_call(leave, args, kwargs)

        return init_process_group

    return wrap_both


def _start_and_call(
    leave: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Remove the wrapper around ``init_process_group``, start recording, and call it."""
    try:
        leave()
        from hangscope.recording.api import start

        rank, world_size = declaration(args, kwargs, os.environ).place or (-1, -1)
        start(rank=rank, world_size=world_size)
    except Exception as error:
        from hangscope.recording.warn_once import warn_once

        warn_once(f"recording is off: {type(error).__name__}: {error}")
    # The recording has installed its own wrapper by now; if it failed, this is the original.
    home = sys.modules["torch.distributed.distributed_c10d"]
    return home.init_process_group(*args, **kwargs)
