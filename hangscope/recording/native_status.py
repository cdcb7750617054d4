"""What the native recorder knows and Python must not ask CUDA for: started and completed.

NCCL's own watchdog keeps ``pg_status`` (last enqueued, started and completed collective); the JSON
dump without entries hands it out cheaply. With entries it would query CUDA events from this thread,
which can break a graph capture: entries are never asked for here. They come from the dumps that
NCCL's watchdog writes itself (`hangscope.recording.native_dumps`).

Gloo's native entries carry neither times nor states (torch 2.13: ``scheduled`` for ever, both times
None), so there is nothing in them to merge; polling knows more.

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
        """The native status of this torch build, or None where it has none."""
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
            return  # sends and receives have numbers of their own, which stand in the same counters
        enqueued = int(counters.get("last_enqueued_collective", -1))
        if not 0 < enqueued <= state.collective_seq:
            return  # not numbered as here: some operation has passed the hook by
        cells = recorder.ring.cells
        cells[state.cells + _STARTED] = int(counters.get("last_started_collective", -1))
        # Before the first is finished the native counter is -1, which here means "not known".
        completed = max(int(counters.get("last_completed_collective", -1)), 0)
        if completed > cells[state.cells + _COMPLETED]:
            # When this was seen: a heartbeat late at most. The counter itself has no time.
            cells[state.cells + _COMPLETED_NS] = time_ns()
        cells[state.cells + _COMPLETED] = completed


def native_id(state: GroupState) -> str:
    """The key of a group in ``pg_status``; empty where its counters are not to be merged.

    A group that used several backends counts here over all of them, natively for each alone.
    """
    if not state.recorded or state.observable or len(state.backends) != 1:
        return ""
    return next(iter(state.backends.values())).native_id
