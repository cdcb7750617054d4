"""Process groups as the recorder sees them: identity, counters and unfinished operations."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from hangscope.ring.layout import SlotFlag
from hangscope.ring.writer import RingWriter

MAX_PENDING = 1024
"""Unfinished operations watched per group; each pins its tensors, so there is a bound."""


Pending = tuple[Any, int, int, int]
"""An issued operation whose completion is polled: Work, record id, collective sequence number,
flags."""


class DeviceBackend(NamedTuple):
    """The backend a group uses for one device type."""

    name: str
    pollable: bool
    """Whether its Works may be polled from another thread (CPU backends only: querying CUDA events
    from Python can break graph capture)."""
    timeout_ms: int


class GroupState:
    """One process group in this process; mutable, owned by the recorder."""

    __slots__ = (
        "backends",
        "cells",
        "coalesced_kinds",
        "coalescing_thread",
        "collective_seq",
        "completed",
        "group_rank",
        "history",
        "index",
        "name",
        "op_id",
        "p2p_seq",
        "pending",
        "process_group",
        "ranks",
        "recorded",
    )

    def __init__(
        self,
        ring: RingWriter,
        index: int,
        name: str,
        ranks: list[int],
        group_rank: int,
        recorded: bool,
    ) -> None:
        self.index = index
        self.name = name
        self.ranks = ranks
        self.group_rank = group_rank
        self.recorded = recorded and index > 0
        self.collective_seq = 0
        self.p2p_seq = 0
        self.op_id = 0
        self.history = 0
        self.completed = 0
        self.pending: deque[Pending] = deque()
        self.backends: dict[str, DeviceBackend] = {}
        self.coalescing_thread = 0
        self.coalesced_kinds = 0
        self.process_group: weakref.ref[Any] | None = None
        self.cells = ring.group_cells(index) if index > 0 else 0

    def backend_for(self, process_group: Any, device_type: str) -> DeviceBackend:
        """The backend that serves a device type, looked up once."""
        known = self.backends.get(device_type)
        if known is None:
            known = self.backends[device_type] = _backend(process_group, device_type)
        return known

    def global_rank(self, group_rank: int) -> int:
        """The global rank of a member, or -1."""
        return self.ranks[group_rank] if 0 <= group_rank < len(self.ranks) else -1


class GroupRegistry:
    """All process groups this process has seen, found by object identity in the hot path."""

    def __init__(
        self, ring: RingWriter, complain: Callable[[str], None], record_fake: bool
    ) -> None:
        self._ring = ring
        self._complain = complain
        self._record_fake = record_fake
        self.by_identity: dict[int, GroupState] = {}
        self._epochs: dict[str, int] = {}

    def register(self, process_group: Any) -> GroupState:
        """Enter a group on first sight."""
        key = id(process_group)
        known = self.by_identity.get(key)
        if known is not None:
            return known
        name, desc, ranks, group_rank, backend = _describe(process_group)
        recorded = self._record_fake or "fake" not in backend
        index = 0
        if recorded:
            epoch = self._epochs.get(name, 0)
            self._epochs[name] = epoch + 1
            index = self._ring.add_group(
                name, desc, ranks, backend, epoch, group_rank, observable=_is_pollable(backend)
            )
            if not index:
                self._complain(
                    f"more than {self._ring.group_count} process groups; further ones are "
                    "not recorded"
                )
        state = GroupState(self._ring, index, name, ranks, group_rank, recorded)

        # The entry goes when the group does: its id may be given to another object then, and
        # holding the group itself would keep its communicator alive.
        def forget(_: object, key: int = key) -> None:
            self.by_identity.pop(key, None)

        state.process_group = weakref.ref(process_group, forget)
        self.by_identity[key] = state
        return state

    def scan(self) -> None:
        """Enter groups that were made but have issued nothing yet."""
        import sys

        module = sys.modules.get("torch.distributed.distributed_c10d")
        world = getattr(module, "_world", None)
        if world is None:
            return
        for process_group in list(world.pg_map):
            if id(process_group) not in self.by_identity and process_group is not None:
                self.register(process_group)

    def states(self) -> list[GroupState]:
        """The groups of this moment."""
        return list(self.by_identity.values())


def _describe(process_group: Any) -> tuple[str, str, list[int], int, str]:
    """Name, description, global ranks, own group rank and backend of a group."""
    import torch.distributed.distributed_c10d as c10d

    try:
        name = str(process_group.group_name)
    except Exception:
        name = f"unnamed-{process_group.size()}"
    try:
        desc = str(process_group.group_desc)
    except Exception:
        desc = ""
    try:
        ranks = [int(rank) for rank in c10d.get_process_group_ranks(process_group)]
    except Exception:
        ranks = list(range(int(process_group.size())))
    try:
        backend = str(c10d.get_backend(process_group))
    except Exception:
        try:
            backend = str(process_group.name())
        except Exception:
            backend = "unknown"
    return name, desc, ranks, int(process_group.rank()), backend


def _backend(process_group: Any, device_type: str) -> DeviceBackend:
    import torch

    timeout_ms = 0
    try:
        backend = process_group._get_backend(torch.device(device_type))
        name = str(backend.name())
        try:
            timeout_ms = int(backend.options._timeout.total_seconds() * 1000)
        except Exception:
            pass
    except Exception:
        try:
            name = str(process_group.name())
        except Exception:
            name = "unknown"
    pollable = device_type == "cpu" and _is_pollable(name)
    return DeviceBackend(name.lower(), pollable, timeout_ms)


def _is_pollable(backend: str) -> bool:
    return any(word in backend for word in ("gloo", "mpi", "fake", "undefined"))


def completed_flags(flags: int, succeeded: bool) -> int:
    """A record's flags once it is finished."""
    return flags | SlotFlag.RETIRED | (0 if succeeded else SlotFlag.FAILED)
