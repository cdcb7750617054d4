"""How far the members of one group are."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.diagnosis.records.frontier import UNKNOWN, Bools, Ints


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The members of a group about which anything is known, one row each in every column.

    The columns start as those of `Frontiers`; facts about a process modify them in place.
    """

    ranks: Ints
    enqueued: Ints
    completed: Ints
    pending: Ints
    rows: Ints
    """Rows of ``pending``, or -1."""
    began_ns: Ints
    finished: int
    """The newest collective that any member has finished; 0 for none."""

    @property
    def known(self) -> Bools:
        """Members for which it is known how much they have issued."""
        found: Bools = self.enqueued != UNKNOWN
        return found
