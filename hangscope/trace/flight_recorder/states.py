"""Determines how far each entry got, from the vocabulary of any recorder or collector."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.trace import clean
from hangscope.trace.flight_recorder.columns import Entries, pick, values_of
from hangscope.trace.model import NONE

_STATES = {
    "scheduled": 0, "enqueued": 0, "queued": 0, "pending": 0, "waiting": 0, "timed_out": 0,
    "timeout": 0, "not_started": 0, "issued": 0,
    "started": 1, "running": 1, "in_progress": 1, "active": 1, "launched": 1, "executing": 1,
    "completed": 2, "complete": 2, "finished": 2, "done": 2, "success": 2, "succeeded": 2,
}  # fmt: skip
_STATE_FIELDS = ("state", "status")
_END_FIELDS = (
    "retired", "time_discovered_completed_ns", "time_discovered_completed_us",
)  # fmt: skip


def _is_unknown(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower().replace(" ", "_") not in (*_STATES, "0", "1", "2")
    return clean.as_int(value, NONE) not in (0, 1, 2)


def state_columns(
    entries: Entries,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_] | None]:
    """`hangscope.trace.model.State` per entry, from names in any case or numbers.

    Also returns which entries do not say in any known word whether they have finished; None if all
    do.
    """
    name = pick(entries, *_STATE_FIELDS)
    if name is None:
        silent = pick(entries, *_END_FIELDS) is None
        return np.zeros(len(entries), np.uint8), np.full(len(entries), True) if silent else None
    values = values_of(entries, name)
    try:
        if set(values) <= _STATES.keys():
            return np.fromiter(map(_STATES.__getitem__, values), np.uint8, len(values)), None
    except TypeError:
        pass
    states = np.fromiter((_state(v) for v in values), np.uint8, len(values))
    return states, np.fromiter((_is_unknown(v) for v in values), bool, len(values))


def _state(value: Any) -> int:
    if isinstance(value, str):
        known = _STATES.get(value.strip().lower().replace(" ", "_"))
        if known is not None:
            return known
    number = clean.as_int(value, 0)
    return number if number in (0, 1, 2) else 0
