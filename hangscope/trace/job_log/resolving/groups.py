"""Finds the groups of timeouts and counters whose lines name none."""

from __future__ import annotations

from collections import defaultdict

from hangscope.trace import operations
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import (
    DEFAULT_GROUP,
    UNKNOWN_GROUP,
    GroupId,
    Operation,
    RankNotes,
)
from hangscope.trace.model import Signature

_SAME_HISTORY = 1000
"""Ungrouped sequence numbers further apart than this belong to different groups."""
_FEWEST_OF_ALL = 3
_OfRank = tuple[int, Operation]
"""A rank and its operation of unknown group."""


def resolve_groups(attempt: Attempt) -> None:
    """Find a group for timeouts that name none.

    First by the counters of the same rank, then by the same operation on other ranks. Otherwise it
    is the default group if all such numbers may belong to one history; else every cluster of
    numbers becomes a group of its own.
    """
    every = attempt.ranks.values()
    labels = {group for notes in every for group in (*notes.places, *notes.counters)}
    named = bool(labels - {UNKNOWN_GROUP, DEFAULT_GROUP})
    ungrouped: list[_OfRank] = []
    for rank, notes in attempt.ranks.items():
        for operation in [o for o in notes.operations if o.group == UNKNOWN_GROUP]:
            operation.group = _by_counters(notes, operation)
            if operation.group == UNKNOWN_GROUP:
                ungrouped.append((rank, operation))
        bare = notes.counters.pop(UNKNOWN_GROUP, None)
        if bare is not None:  # under the old label (``[Rank 3]``)
            groups = {o.group for o in notes.operations if o.group != UNKNOWN_GROUP}
            notes.counters.setdefault(groups.pop() if len(groups) == 1 else DEFAULT_GROUP, bare)
    _adopt_groups(ungrouped, attempt)
    ungrouped = [item for item in ungrouped if item[1].group == UNKNOWN_GROUP]
    if _take_all_part(ungrouped, attempt):
        rest = [operation for _, operation in ungrouped]
    else:
        rest = _of_default_group(ungrouped, named)
    for operation in rest:
        operation.group = DEFAULT_GROUP
    _split_histories([o for o in rest if not operations.is_p2p(o.signature.op)])


def _by_counters(notes: RankNotes, operation: Operation) -> GroupId:
    """The one labelled group of the rank in which this number can be the overdue one."""
    seq, alike = operation.seq, [o.group for o in notes.operations if o.seq == operation.seq]
    if alike.count(UNKNOWN_GROUP) > 1:
        return UNKNOWN_GROUP  # several groups are at this number
    labelled = {g: c for g, c in notes.counters.items() if g not in (UNKNOWN_GROUP, *alike)}
    fitting = [
        group
        for group, c in labelled.items()
        if c.completed < seq and (c.enqueued < 0 or seq <= c.enqueued)
    ]
    next_up = [group for group in fitting if labelled[group].completed == seq - 1]
    for found in (fitting, next_up):
        if len(found) == 1:
            return found[0]
    groups = [group for group in notes.places if group != UNKNOWN_GROUP]
    return groups[0] if len(groups) == 1 and not labelled else UNKNOWN_GROUP


def _adopt_groups(ungrouped: list[_OfRank], attempt: Attempt) -> None:
    """Move operations into the only group where others have them."""
    where: dict[tuple[int, Signature], set[GroupId]] = defaultdict(set)
    for other in [o for notes in attempt.ranks.values() for o in notes.operations]:
        where[other.seq, other.signature].add(other.group)
    for _, operation in ungrouped:
        groups = where[operation.seq, operation.signature] - {UNKNOWN_GROUP}
        if len(groups) == 1 and operation.seq and not operations.is_p2p(operation.signature.op):
            (operation.group,) = groups


def _take_all_part(ungrouped: list[_OfRank], attempt: Attempt) -> bool:
    """Whether the operations are one collective whose sizes show that all ranks take part in it.

    A gather is as many times larger than what each member puts in as it has members.
    """
    alike = {(operation.seq, operation.signature) for _, operation in ungrouped}
    world = attempt.world_at_least
    default = any(
        DEFAULT_GROUP in (*notes.counters, *(o.group for o in notes.operations))
        for notes in attempt.ranks.values()
    )
    if len(alike) != 1 or world < _FEWEST_OF_ALL or default:
        return False
    ((_, signature),) = alike
    small, large = sorted((signature.input_numel or 0, signature.output_numel or 0))
    return small * world == large > 0


def _of_default_group(ungrouped: list[_OfRank], named: bool) -> list[Operation]:
    """The operations that may be the default group's; all others get an unknown group each.

    If a line shows that a rank has a different group rank somewhere, there are smaller groups. Then
    only a group rank that none of those has shown counts as one in the default group. The default
    group is not inferred, either, if lines name other groups (``named``): the watchdog concerned
    has not got as far as naming its own.
    """
    inner = [o.place for rank, o in ungrouped if o.place is not None and o.place != rank]
    largest, rest = max(inner, default=-1), []
    for rank, operation in ungrouped:
        if named or (inner and (operation.place != rank or rank <= largest)):
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
        if not clusters or operation.seq - clusters[-1][-1].seq > _SAME_HISTORY:
            clusters.append([])
        clusters[-1].append(operation)
    for number, cluster in enumerate(clusters if len(clusters) > 1 else ()):
        for operation in cluster:
            operation.group = (f"?{number}", "unknown group")
