"""Completions that only the dump itself noticed: these ranks were moving when they were dumped."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.context import Context
from hangscope.trace.model import Flag, State, flagged


def just_finished(context: Context) -> frozenset[int]:
    """Ranks whose newest completion the watchdog had not yet noted, though it had noted earlier
    ones.

    Torch's watchdog looks every tenth of a second. So whatever the file's date says (copying
    changes it), such a rank had not waited for long.
    """
    found = set()
    for rank, (low, high) in context.bounds.items():
        part = context.trace.records[low:high]
        ended = np.where(part["state"] == int(State.COMPLETED), part["completed_ns"], 0)
        noted = flagged(part["flags"], Flag.RETIRED)
        if ended[noted].any() and ended[~noted].max(initial=0) > ended[noted].max():
            found.add(rank)
    return frozenset(found)
