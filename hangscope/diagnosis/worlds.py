"""Ranks that were told different numbers of ranks: they never get to know each other.

A mistake of the launch, on record from the first moment on: it needs neither a timeout nor anybody
who waits, and whatever the ranks fail in afterwards is its consequence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.places import INIT, Place
from hangscope.diagnosis.sentences import rank_s
from hangscope.trace import formats
from hangscope.trace.model import NONE, Flag, State

_OWN_WORD = (formats.RING, formats.JOURNAL, *formats.DUMPS)
"""Kinds of sources that tell what a rank was told, rather than what a reader concluded."""


def different_worlds(context: Context, ranks: Iterable[int], cause: Cause) -> None:
    """Make ``cause`` one of sizes that contradict each other, if those of ``ranks`` do."""
    worlds: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        facts = context.trace.ranks.get(rank)
        size = facts.world_size if facts is not None else None
        if size:
            worlds[size].append(rank)
    if len(worlds) < 2:
        return
    most = max(len(told) for told in worlds.values())
    usual = [told for told in worlds.values() if len(told) == most]
    decided = len(usual) == 1
    cause.verdict = Verdict.ARGUMENT_MISMATCH
    cause.culprits = tuple(
        sorted(r for told in worlds.values() if not decided or told is not usual[0] for r in told)
    )
    cause.confidence = Confidence.CERTAIN if decided else Confidence.AMBIGUOUS
    cause.conflict = " and ".join(
        f"{rank_s(told)} expect{'s' if len(told) == 1 else ''} {size} ranks"
        for size, told in sorted(worlds.items(), key=lambda item: len(item[1]))
    )
    cause.words = (
        f"The ranks do not agree how many they are: {cause.conflict}",
        "ranks that expect different numbers of ranks never meet in init_process_group, or fail in "
        "their first collective",
        "",
    )


def world_causes(context: Context, causes: list[Cause]) -> list[Cause]:
    """The sizes that contradict each other, where no place of the graph has shown it already.

    Only a job in which no collective was ever finished is sure to be one that never met.
    """
    trace = context.trace
    if any(c.conflict for c in causes) or not trace.ranks:
        return []
    if any(s.format not in _OWN_WORD for s in trace.sources):
        return []
    pairs = (trace.records["flags"] & int(Flag.P2P)) != 0
    if ((trace.records["state"] == int(State.COMPLETED)) & ~pairs).any():
        return []
    if all(facts.finalized for facts in trace.ranks.values()):
        return []
    cause = Cause(Verdict.INCONCLUSIVE, ())
    different_worlds(context, sorted(trace.ranks), cause)
    if cause.verdict is Verdict.INCONCLUSIVE:
        return []
    if trace.missing_ranks and cause.confidence is Confidence.CERTAIN:
        cause.confidence = Confidence.LIKELY
    context.waits.places.append(
        Place(NONE, NONE, [], members=tuple(sorted(trace.ranks)), phase=INIT)
    )
    cause.places = [len(context.waits.places) - 1]
    cause.victims = set(trace.ranks) - set(cause.culprits)
    return [cause]
