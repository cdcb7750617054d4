"""Process groups as the recorder sees them: identity, counters and unfinished operations."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from hangscope.recording.counters import Counters
from hangscope.recording.group_info import group_info
from hangscope.ring.layout import SlotFlag
from hangscope.ring.writer import RingWriter

MAX_ORPHANS = 256
LOCK_TIMEOUT_S = 2.0
Pending = list[Any]
"""An issued operation whose completion is awaited: record id, Work (or the script object that holds
it), collective sequence number, flags, `GroupState`. The id comes first so that comparing two
entries never gets to the script objects, which must not be compared."""


class DeviceBackend(NamedTuple):
    """The backend a group uses for one device type."""

    name: str
    pollable: bool
    """Whether its Works may be polled from another thread (CPU backends only: querying CUDA events
    from Python can break graph capture)."""
    timeout_ms: int
    flags: int = 0
    """Flags of every record: UNOBSERVED if the Works are not polled."""
    native_id: str = ""
    """The backend's key in the native recorder's ``pg_status``, if it has one."""


class GroupState(Counters):
    """One process group in this process; mutable, owned by the recorder."""

    __slots__ = (
        "backends",
        "destroyed",
        "draining",
        "group_rank",
        "name",
        "pairs",
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
        observable: bool = True,
    ) -> None:
        self.index = index
        self.name = name
        self.ranks = ranks
        self.group_rank = group_rank
        self.recorded = recorded and index > 0
        self.observable = observable
        self.collective_seq = self.seq_before = self.p2p_seq = 0
        self.op_id = self.published = 0
        self.history = self.history_before = 0
        self.coalescing_thread = self.coalesced_kinds = 0
        self.completed = self.highest_done = self.failed_seq = 0
        self.draining = False
        self.destroyed = False
        self.pairs: dict[tuple[bool, int], str] = {}
        self.pending: deque[Pending] = deque()
        self.backends: dict[str, DeviceBackend] = {}
        self.process_group: weakref.ref[Any] | None = None
        self.cells = ring.group_cells(index) if index > 0 else 0

    def backend_for(self, process_group: Any, device_type: str) -> DeviceBackend:
        """The backend that serves a device type, looked up once."""
        known = self.backends.get(device_type)
        if known is None:
            known = self.backends[device_type] = _backend(process_group, device_type)
        return known

    def pair(self, sends: bool, other: int) -> str:
        """The suffix that the Flight Recorder gives a send or recv: `` 0->1``, with group ranks."""
        known = self.pairs.get((sends, other))
        if known is None:
            arrow = "->" if sends else "<-"
            known = f" {self.group_rank}{arrow}{other if other >= 0 else '?'}"
            self.pairs[sends, other] = known
        return known

    def is_of(self, process_group: Any) -> bool:
        """Whether this is the state of the given group."""
        return self.process_group is not None and self.process_group() is process_group

    def native_sequence(self) -> int | None:
        """The backend's own collective sequence number; None if not available."""
        process_group = self.process_group() if self.process_group is not None else None
        try:
            return int(process_group._get_sequence_number_for_group())  # type: ignore[union-attr]
        except Exception:
            return None

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
        # Groups whose Python object is gone while the group lives on in C++ (held by a DDP reducer,
        # say). torch then makes a new Python object whenever one is requested.
        self._orphans: dict[tuple[str, tuple[int, ...]], GroupState] = {}
        self._lock = threading.RLock()
        self.on_forget: list[Callable[[GroupState], object]] = []
        """Called when Python's object of a group is gone: its address may be reused."""
        self.on_register: list[Callable[[Any], object]] = []
        """Called with a group that is met for the first time."""

    def register(self, process_group: Any) -> GroupState:
        """The state of a group, created on first use."""
        key = id(process_group)
        known = self.by_identity.get(key)
        if known is not None:
            return known
        # Two threads may use a new group at once. The time limit is for shutdown: a daemon thread
        # that was frozen while holding the lock will never release it.
        taken = self._lock.acquire(timeout=LOCK_TIMEOUT_S)
        try:
            return self.by_identity.get(key) or self._enter(process_group)
        finally:
            if taken:
                self._lock.release()

    def _enter(self, process_group: Any) -> GroupState:
        name, desc, ranks, group_rank, backend = group_info(process_group, self._ring.rank)
        state = self._orphans.pop((name, tuple(ranks)), None)
        if state is not None:
            self._remember(state, process_group)
            return state
        recorded = self._record_fake or not all("fake" in part for part in backend.split(","))
        observable = all(_is_pollable(part) for part in backend.split(","))
        index = 0
        if recorded:
            epoch = self._epochs.get(name, 0)
            self._epochs[name] = epoch + 1
            index = self._ring.add_group(
                name, desc, ranks, backend, epoch, group_rank, observable=observable
            )
            if not index:
                self._complain(
                    f"more than {self._ring.group_count} process groups; further ones are "
                    "not recorded"
                )
        state = GroupState(self._ring, index, name, ranks, group_rank, recorded, observable)
        self._remember(state, process_group)
        for call in self.on_register:
            call(process_group)
        return state

    def _remember(self, state: GroupState, process_group: Any) -> None:
        """Map the object's id to the state for as long as the object lives.

        Afterwards its id may be reused by another object. A strong reference is no alternative: it
        would keep the group's communicator alive.
        """
        key = id(process_group)

        def forget(_: object, limit: int = MAX_ORPHANS) -> None:
            # May run after interpreter shutdown has cleared this module's globals.
            self.by_identity.pop(key, None)
            for call in self.on_forget:
                call(state)
            if not state.destroyed and len(self._orphans) < limit:
                self._orphans[state.name, tuple(state.ranks)] = state

        state.process_group = weakref.ref(process_group, forget)
        self.by_identity[key] = state

    def destroyed(self, process_group: Any) -> None:
        """A group (None: every group) is being destroyed; its name may be reused."""
        if process_group is None:
            self._orphans.clear()
        for state in self.states():
            if process_group is None or state.is_of(process_group):
                state.destroyed = True
                if state.recorded:
                    self._ring.note_destroyed(state.index)

    def scan(self) -> None:
        """Register groups that exist but have issued nothing yet."""
        import sys

        module = sys.modules.get("torch.distributed.distributed_c10d")
        world = getattr(module, "_world", None)
        if world is None:
            return
        for process_group in list(world.pg_map):
            if id(process_group) not in self.by_identity and process_group is not None:
                self.register(process_group)

    def states(self) -> list[GroupState]:
        """The states of all groups known now."""
        return [*self.by_identity.values(), *self._orphans.values()]


def _backend(process_group: Any, device_type: str) -> DeviceBackend:
    import torch

    timeout_ms = 0
    native_id = ""
    try:
        backend = process_group._get_backend(torch.device(device_type))
        name = str(backend.name())
        native_id = str(getattr(backend, "uid", ""))
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
    flags = 0 if pollable else int(SlotFlag.UNOBSERVED)
    return DeviceBackend(name.lower(), pollable, timeout_ms, flags, native_id)


def _is_pollable(backend: str) -> bool:
    """Whether Works may be polled. Not those of the fake backend, which stands in for a GPU one."""
    return any(word in backend for word in ("gloo", "mpi"))
