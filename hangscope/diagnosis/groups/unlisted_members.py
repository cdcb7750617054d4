"""Group members that no list names but sizes or gaps in the rank numbering imply."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from hangscope.diagnosis.groups.dimensions import UNINFORMATIVE, sizes_of_groups
from hangscope.diagnosis.records.coverage import gaps, unlisted
from hangscope.trace.model import Trace


class UnlistedMembers:
    """Says for every group of a trace who else must belong to it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.gaps = frozenset(gaps(trace))
        self._known = frozenset(trace.ranks)
        self._unlisted = frozenset(unlisted(trace))

    @cached_property
    def _sizes(self) -> dict[int, int]:
        return sizes_of_groups(self.trace)

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
            size = trace.groups[group].size or self._sizes.get(group, 0)
            return sorted(set(range(size)) - set(seen)) if whole else []
        if whole:
            return sorted(missing)  # a group of the whole world
        # Groups with one description partition the world evenly: ranks in none of them are missing.
        desc = trace.groups[group].desc
        if desc in UNINFORMATIVE:
            return []
        alike = [i for i, g in enumerate(trace.groups) if g.desc == desc]
        size = max(len(seen_in.get(i, ())) for i in alike)
        size = max(size, trace.groups[group].size or self._sizes.get(group, 0))
        missing -= {r for i in alike for r in seen_in.get(i, ())}
        return sorted(missing) if size - len(seen) == len(missing) else []
