"""What the native recorder knows and Python must not ask CUDA for: started and completed.

NCCL's own watchdog keeps ``pg_status`` (last enqueued, started and completed collective); the JSON
dump without entries hands it out cheaply. No CUDA call is made from here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from hangscope.recording.recorder import Recorder
from hangscope.ring.layout import group_offset


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
        states = [
            state
            for state in recorder.groups.states()
            if state.recorded and any(not b.pollable for b in state.backends.values())
        ]
        if not states or self._failures > 3:
            return
        try:
            status = json.loads(self._dump()).get("pg_status", {})
            counters = sorted(
                ((int(key), value) for key, value in status.items()), key=lambda item: item[0]
            )
        except Exception:
            self._failures += 1
            return
        # Keys are process-local numbers in order of creation, as the registry's indexes are.
        by_order = sorted(states, key=lambda state: state.index)
        if len(counters) < len(by_order):
            return
        for state, (_, value) in zip(by_order, counters, strict=False):
            enqueued = int(value.get("last_enqueued_collective", -1))
            completed = int(value.get("last_completed_collective", -1))
            started = int(value.get("last_started_collective", -1))
            if enqueued > state.collective_seq:
                continue  # not this group after all
            recorder.ring.set_cell(state.cells + group_offset("completed") // 8, completed)
            recorder.ring.set_cell(state.cells + group_offset("started") // 8, started)
