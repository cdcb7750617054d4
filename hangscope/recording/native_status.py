"""Started and completed counters of GPU groups, from the native recorder.

Python must not query CUDA for these. NCCL's own watchdog keeps ``pg_status`` (last enqueued,
started and completed collective), which the JSON dump without entries returns cheaply. A dump with
entries would query CUDA events from this thread, which can break a graph capture, so entries are
never requested here. They come from the dumps that NCCL's watchdog writes itself
(`hangscope.recording.native_dumps`).

Gloo's native entries have neither times nor states (torch 2.13: ``scheduled`` for ever, both times
None), so there is nothing to merge; polling knows more.

Sources: ``FlightRecorderDetail.hpp`` and ``ProcessGroupNCCL.cpp`` of torch. ``pg_status`` is keyed
by the backend's ``uid``, a number local to the process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from time import time_ns
from typing import Any

from hangscope.recording.groups import GroupState
from hangscope.recording.recorder import Recorder
from hangscope.ring.layout import group_offset

_STARTED = group_offset("started") // 8
_COMPLETED = group_offset("completed") // 8
_COMPLETED_NS = group_offset("completed_ns") // 8
MAX_FAILURES = 3


class NativeStatus:
    """Copies the native counters of GPU groups into the ring's group table."""

    def __init__(self, dump: Callable[[], Any]) -> None:
        self._dump = dump
        self._failures = 0

    @classmethod
    def available(cls) -> NativeStatus | None:
        """The native status of this torch build; None if it offers none."""
        module = sys.modules.get("torch._C._distributed_c10d")
        dump_json = getattr(module, "_dump_nccl_trace_json", None)
        if dump_json is None:
            return None

        def dump() -> Any:
            try:
                return dump_json(includeCollectives=False, onlyActive=True)
            except TypeError:  # older signature
                return dump_json(False)

        return cls(dump)

    def merge(self, recorder: Recorder) -> None:
        """Copy the counters of every group that is not polled from Python."""
        states = [(state, uid) for state in recorder.groups.states() if (uid := native_id(state))]
        if not states or self._failures > MAX_FAILURES:
            return
        try:
            status = json.loads(self._dump()).get("pg_status", {})
        except Exception:
            self._failures += 1
            return
        for state, uid in states:
            counters = status.get(uid)
            if isinstance(counters, Mapping):
                self._copy(recorder, state, counters)

    def _copy(self, recorder: Recorder, state: GroupState, counters: Mapping[str, Any]) -> None:
        if state.p2p_seq:
            return  # sends and receives, numbered separately, are in the same native counters
        enqueued = int(counters.get("last_enqueued_collective", -1))
        if not 0 < enqueued <= state.collective_seq:
            return  # the numbering differs from ours: some operation has bypassed the hook
        cells = recorder.ring.cells
        cells[state.cells + _STARTED] = int(counters.get("last_started_collective", -1))
        # Until the first collective completes the native counter is -1, our value for "not known".
        completed = max(int(counters.get("last_completed_collective", -1)), 0)
        if completed > cells[state.cells + _COMPLETED]:
            # The time this was seen, at most a heartbeat late: the counter itself has no time.
            cells[state.cells + _COMPLETED_NS] = time_ns()
        cells[state.cells + _COMPLETED] = completed


def native_id(state: GroupState) -> str:
    """The key of a group in ``pg_status``; empty if its counters must not be merged.

    With several backends our counters cover all of them, but each native counter only one.
    """
    if not state.recorded or state.observable or len(state.backends) != 1:
        return ""
    return next(iter(state.backends.values())).native_id
