"""Phases: what a rank is doing outside collectives.

Above all, the calls that make and destroy process groups: they wait in the store rather than in the
dispatcher, so they are wrapped by name.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection
from typing import Any

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
