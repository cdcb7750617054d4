"""Determines how far each entry got."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.trace.flight_recorder.columns import Entries, pick, values_of
from hangscope.trace.model import State

_STATES = {
    "scheduled": State.SCHEDULED, "started": State.STARTED, "completed": State.COMPLETED,
}  # fmt: skip
_END_FIELDS = ("retired", "time_discovered_completed_ns", "time_discovered_completed_us")


def state_columns(
    entries: Entries,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_] | None]:
    """`hangscope.trace.model.State` per entry.

    Also returns which entries do not say in any known word whether they have finished; None if all
    do.
    """
    if "state" not in entries.names:
        silent = pick(entries, *_END_FIELDS) is None
        return np.zeros(len(entries), np.uint8), np.full(len(entries), True) if silent else None
    values = values_of(entries, "state")
    try:
        return np.fromiter(map(_STATES.__getitem__, values), np.uint8, len(values)), None
    except (KeyError, TypeError):
        known = [_STATES.get(_word(value)) for value in values]
    states = np.fromiter((state or State.SCHEDULED for state in known), np.uint8, len(known))
    return states, np.fromiter((state is None for state in known), bool, len(known))


def _word(value: Any) -> str:
    return value.strip().lower() if isinstance(value, str) else ""
