"""Finds the groups of timeouts and counters whose lines name none."""

from __future__ import annotations

from hangscope.trace import operations
from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.evidence.notes import (
    DEFAULT_GROUP,
    UNKNOWN_GROUP,
    GroupId,
    Operation,
    RankNotes,
)

_SAME_HISTORY = 1000
"""Ungrouped sequence numbers further apart than this belong to different groups."""

_FEWEST_OF_ALL = 3

_OfRank = tuple[int, Operation]
"""A rank and its operation of unknown group."""


def resolve_groups(evidence: Evidence) -> None:
    """Find a group for timeouts that name none.

    First by the counters of the same rank, then by the same operation on other ranks. Otherwise it
    is the default group if all such numbers may belong to one history; else every cluster of
    numbers becomes a group of its own.
    """
    named = _names_other_groups(evidence)
    ungrouped: list[_OfRank] = []
    for rank, notes in evidence.ranks.items():
        for operation in [o for o in notes.operations if o.group == UNKNOWN_GROUP]:
            group = _by_counters(notes, operation)
            if group is not None:
                operation.group = group
            else:
                ungrouped.append((rank, operation))
        _counters_without_label(notes)
    ungrouped = [item for item in ungrouped if not _adopt_group(item[1], evidence)]
    of_all = _of_all_ranks(ungrouped, evidence)
    rest = of_all or _of_default_group(ungrouped, named)
    for operation in rest:
        operation.group = DEFAULT_GROUP
    _split_histories([o for o in rest if not operations.is_p2p(o.signature.op)])


def _names_other_groups(evidence: Evidence) -> bool:
    """Whether any line names a group other than the default one."""
    return any(
        group not in (UNKNOWN_GROUP, DEFAULT_GROUP)
        for notes in evidence.ranks.values()
        for group in (*notes.places, *notes.counters)
    )


def _of_all_ranks(ungrouped: list[_OfRank], evidence: Evidence) -> list[Operation]:
    """The operations if they are one collective whose sizes show that all ranks take part in it.

    A gather is as many times larger than what each member puts in as it has members.
    """
    alike = {(operation.seq, operation.signature) for _, operation in ungrouped}
    world = evidence.world_at_least
    if len(alike) != 1 or world < _FEWEST_OF_ALL or _mentions_default_group(evidence):
        return []
    ((_, signature),) = alike
    sizes = sorted((signature.input_numel or 0, signature.output_numel or 0))
    return [operation for _, operation in ungrouped] if sizes[0] * world == sizes[1] > 0 else []


def _mentions_default_group(evidence: Evidence) -> bool:
    return any(
        DEFAULT_GROUP in (*notes.counters, *(o.group for o in notes.operations))
        for notes in evidence.ranks.values()
    )


def _of_default_group(ungrouped: list[_OfRank], named: bool) -> list[Operation]:
    """The operations that may be the default group's; all others get an unknown group each.

    If a line shows that a rank has a different group rank somewhere, there are smaller groups. Then
    only a group rank that none of those has shown counts as one in the default group. The default
    group is not inferred, either, if lines name other groups (``named``): the watchdog concerned
    has not got as far as naming its own.
    """
    inner = [o.place for rank, o in ungrouped if o.place is not None and o.place != rank]
    if not (inner or named):
        return [operation for _, operation in ungrouped]
    largest = max(inner, default=-1)
    rest = []
    for rank, operation in ungrouped:
        if named or operation.place != rank or rank <= largest:
            operation.group = (f"?{rank}", "unknown group")
        else:
            rest.append(operation)
    return rest


def _split_histories(collectives: list[Operation]) -> None:
    """Give each cluster of sequence numbers a separate group if there are several.

    No cluster is more likely than another to be the default group.
    """
    clusters: list[list[Operation]] = []
    for operation in sorted(collectives, key=lambda o: o.seq):
        if clusters and operation.seq - clusters[-1][-1].seq <= _SAME_HISTORY:
            clusters[-1].append(operation)
        else:
            clusters.append([operation])
    if len(clusters) < 2:
        return
    for number, cluster in enumerate(clusters):
        for operation in cluster:
            operation.group = (f"?{number}", "unknown group")


def _adopt_group(operation: Operation, evidence: Evidence) -> bool:
    """Move a timeout without a group into the only group where others have that operation."""
    like = {
        other.group
        for notes in evidence.ranks.values()
        for other in notes.operations
        if other.group != UNKNOWN_GROUP
        and (other.seq, other.signature) == (operation.seq, operation.signature)
    }
    if len(like) == 1 and operation.seq and not operations.is_p2p(operation.signature.op):
        (operation.group,) = like
        return True
    return False


def _by_counters(notes: RankNotes, operation: Operation) -> GroupId | None:
    """The one labelled group of the rank in which this number can be the overdue one."""
    alike = [o for o in notes.operations if o.seq == operation.seq]
    known = {o.group for o in alike} - {UNKNOWN_GROUP}
    if sum(o.group == UNKNOWN_GROUP for o in alike) > 1:
        return None  # several groups are at this number
    labelled = {g: c for g, c in notes.counters.items() if g not in (UNKNOWN_GROUP, *known)}
    fitting = [
        g
        for g, c in labelled.items()
        if c.completed < operation.seq <= max(c.enqueued, operation.seq)
        and (c.enqueued < 0 or operation.seq <= c.enqueued)
    ]
    if len(fitting) == 1:
        return fitting[0]
    next_up = [g for g in fitting if labelled[g].completed == operation.seq - 1]
    if len(next_up) == 1:
        return next_up[0]
    groups = [g for g in notes.places if g != UNKNOWN_GROUP]
    return groups[0] if len(groups) == 1 and not labelled else None


def _counters_without_label(notes: RankNotes) -> None:
    """Move counters under the old label (``[Rank 3]``) to the group of the rank's timeouts."""
    bare = notes.counters.pop(UNKNOWN_GROUP, None)
    if bare is None:
        return
    groups = {o.group for o in notes.operations if o.group != UNKNOWN_GROUP}
    target = groups.pop() if len(groups) == 1 else DEFAULT_GROUP
    notes.counters.setdefault(target, bare)
