"""Ends that only the dump itself has noticed: their ranks moved when they were dumped."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.trace.model import Flag, State, flagged


def just_finished(context: Context) -> frozenset[int]:
    """Ranks whose newest end no watchdog had noted yet, while it had noted those before.

    Torch's looks every tenth of a second. Whatever the date of the file says, which copying renews,
    such a rank had not waited for long.
    """
    found = set()
    for rank, (low, high) in context.bounds.items():
        part = context.trace.records[low:high]
        ended = np.where(part["state"] == int(State.COMPLETED), part["completed_ns"], 0)
        noted = flagged(part["flags"], Flag.RETIRED)
        if ended[noted].any() and ended[~noted].max(initial=0) > ended[noted].max():
            found.add(rank)
    return frozenset(found)
