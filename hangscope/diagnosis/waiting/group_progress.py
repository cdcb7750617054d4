"""How far the members of one group are, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.diagnosis.records.frontier import UNKNOWN, Bools, Ints


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Those members of a group of whom anything is known: one row each in all columns.

    The columns are those of `Frontiers`, which what is known of a process changes in place.
    """

    ranks: Ints
    enqueued: Ints
    completed: Ints
    pending: Ints
    rows: Ints
    """The records of ``pending``, or -1."""
    began_ns: Ints
    finished: int
    """The newest collective that any of them has finished; 0 for none."""

    @property
    def known(self) -> Bools:
        """Of whom it is known how much they have issued."""
        found: Bools = self.enqueued != UNKNOWN
        return found
