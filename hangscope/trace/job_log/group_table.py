"""The groups that a log mentions, with their known members."""

from __future__ import annotations

from collections import Counter, defaultdict

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import UNKNOWN_GROUP, GroupId
from hangscope.trace.merging.groups import gather_factor
from hangscope.trace.model import Group


class GroupTable:
    """All groups of one log. A name is one group, whatever descriptions lines give with it."""

    def __init__(self, attempt: Attempt) -> None:
        by_name: dict[str, GroupId] = {}
        for group in _spoken_of(attempt):
            known = by_name.get(group[0])
            if known is None or (group[1] and not known[1]):
                by_name[group[0]] = group
        places: dict[str, dict[int, int]] = defaultdict(dict)
        votes: dict[str, Counter[int]] = defaultdict(Counter)
        for rank, notes in attempt.ranks.items():
            for (name, _), place in notes.places.items():
                places[name][place] = rank
            for operation in notes.operations:
                size = gather_factor(operation.signature)
                if size > 1:
                    votes[operation.group[0]][size] += 1
        # Even gathers print the number of elements in and out: the quotient is that of members.
        sizes = {name: votes_.most_common(1)[0][0] for name, votes_ in votes.items()}
        sizes |= attempt.group_sizes
        self._index = {name: i for i, name in enumerate(by_name)}
        self.groups: tuple[Group, ...] = tuple(
            Group(
                name=name,
                desc=desc,
                ranks=_members(places.get(name, {}), sizes.get(name)),
                size=sizes.get(name),
                backend="nccl" if name in places else "",
            )
            for name, desc in by_name.values()
        )

    def index(self, group: GroupId) -> int:
        """The group's index."""
        return self._index[group[0]]


def _spoken_of(attempt: Attempt) -> list[GroupId]:
    """Every group that a line mentions, in the order of ranks and claims."""
    groups: dict[GroupId, None] = {}
    for notes in attempt.ranks.values():
        groups.update((operation.group, None) for operation in notes.operations)
        told = (*notes.counters, *notes.places)
        groups.update((group, None) for group in told if group != UNKNOWN_GROUP)
    groups.update((said.group, None) for said in attempt.stated if said.group is not None)
    return list(groups)


def _members(places: dict[int, int], size: int | None) -> tuple[int, ...]:
    """Global ranks in group order, if enough group ranks are known to infer the rest.

    Meshes are laid out evenly: two known group ranks give the stride, and all others must fit it.
    """
    if size is None or len(places) < 2 or max(places) >= size:
        return ()
    if len(places) == size:
        return tuple(places[i] for i in range(size))
    (a, ra), (b, rb) = sorted(places.items())[:2]
    if (rb - ra) % (b - a):
        return ()
    stride = (rb - ra) // (b - a)
    base = ra - a * stride
    if stride <= 0 or base < 0 or any(base + p * stride != r for p, r in places.items()):
        return ()
    return tuple(base + i * stride for i in range(size))
