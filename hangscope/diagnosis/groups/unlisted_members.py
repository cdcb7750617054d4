"""Group members that no list names but sizes or gaps in the rank numbering imply."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hangscope.diagnosis.records.agreement import group_size
from hangscope.diagnosis.records.coverage import gaps, unlisted
from hangscope.diagnosis.records.frontier import index_of
from hangscope.trace.model import Trace

UNINFORMATIVE = ("", "default_pg", "undefined", "unknown group")
"""Descriptions that do not say what a group is for."""


class UnlistedMembers:
    """Says for every group of a trace who else must belong to it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.gaps = frozenset(gaps(trace))
        self._known = frozenset(trace.ranks)
        self._unlisted = frozenset(unlisted(trace))
        self._sizes: dict[int, int] | None = None

    def of(
        self, group: int, seen: tuple[int, ...], seen_in: Mapping[int, tuple[int, ...]]
    ) -> list[int]:
        """Members of ``group`` other than those ``seen``; ``seen_in`` gives the latter for every
        group."""
        trace = self.trace
        if trace.groups[group].outsiders:
            return []
        if trace.groups[group].ranks and not self._unlisted - set(seen):
            return []
        missing = self.gaps - set(seen)
        whole = set(seen) == self._known
        if not missing:
            size = trace.groups[group].size or self._size_from_operations(group) or 0
            return sorted(set(range(size)) - set(seen)) if whole else []
        if whole:
            return sorted(missing)  # a group of the whole world
        # Groups with one description partition the world evenly: ranks in none of them are missing.
        desc = trace.groups[group].desc
        if desc in UNINFORMATIVE:
            return []
        alike = [i for i, g in enumerate(trace.groups) if g.desc == desc]
        size = max(len(seen_in.get(i, ())) for i in alike)
        size = max(size, trace.groups[group].size or self._size_from_operations(group) or 0)
        missing -= {r for i in alike for r in seen_in.get(i, ())}
        return sorted(missing) if size - len(seen) == len(missing) else []

    def _size_from_operations(self, group: int) -> int | None:
        """Size of a group, from an operation whose sizes reveal it."""
        if self._sizes is None:
            self._sizes = {}
            signatures = max(len(self.trace.signatures), 1)
            records = self.trace.records
            used = index_of(records["group"].astype(np.int64) * signatures + records["signature"])
            for key in used[0].tolist():
                size = group_size(self.trace.signatures[key % signatures])
                if size is not None:
                    self._sizes.setdefault(key // signatures, size)
        return self._sizes.get(group)
