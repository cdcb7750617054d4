"""The records of one ring that is being written: each look reads those that may have changed."""

from __future__ import annotations

import numpy as np

from hangscope.ring.layout import SLOT
from hangscope.ring.reader import RingReader
from hangscope.trace.model import Flag, Records, flagged

_REREAD = 64
"""A ring's newest records are always re-read, this many of them: a wait may still show that an
operation is over whose completion nobody polls, or another thread may be writing."""


class LiveSlots:
    """The newest records of a ring.

    Parameters
    ----------
    reader:
        The ring.
    keep:
        How many of them.
    """

    def __init__(self, reader: RingReader, keep: int) -> None:
        self.keep = keep
        self.slots: Records = np.zeros(0, SLOT)
        """Valid records, oldest first."""
        self.missing = 0
        """How many are lost."""
        self._reader = reader
        self._settled = 0
        """Up to this record id nothing changes any more."""
        self._last = 0

    def update(self, last: int) -> bool:
        """Read what may have changed; returns whether anything has.

        Parameters
        ----------
        last:
            The id of the last record that its header says is published.
        """
        if last < self._last:  # it was overwritten by another ring's bytes
            self.slots, self._settled = self.slots[:0], 0
        self._last = last
        since = max(self._settled, last - self.keep, 0)
        fresh, missing = self._reader.slots(since)
        ids = self.slots["record_id"]
        before = int(np.searchsorted(ids, max(last - self.keep, 0), "right"))
        after = int(np.searchsorted(ids, since, "right"))
        lost = missing + max(since - max(last - self.keep, 0), 0) - (after - before)
        if lost == self.missing and self.slots[after:].tobytes() == fresh.tobytes():
            return False
        slots = np.frombuffer(self.slots[before:after].tobytes() + fresh.tobytes(), SLOT)
        newest = int(slots["record_id"][-1]) if len(slots) else 0
        first = int(np.searchsorted(slots["record_id"], max(newest - self.keep, 0), "right"))
        self.slots, self.missing = slots[first:], lost
        self._settled = self._first_open(newest) - 1
        return True

    def _first_open(self, newest: int) -> int:
        """The oldest record that may still change; those that may never are given up eventually."""
        flags, ids = self.slots["flags"], self.slots["record_id"]
        may_change = ~flagged(flags, Flag.RETIRED | Flag.UNOBSERVED)
        oldest = max(newest - min(_REREAD, self.keep), 0)
        recent = int(np.searchsorted(ids, oldest, "right"))
        may_change[recent:] |= ~flagged(flags[recent:], Flag.RETIRED)
        may_change[recent:] |= self.slots["signature"][recent:] == 0
        found = ids[may_change][:1].tolist()
        if len(ids) - recent < newest - oldest:  # one of the newest is not whole yet
            found += sorted(set(range(oldest + 1, newest)) - set(ids[recent:].tolist()))[:1]
        return int(min([*found, newest + 1]))
