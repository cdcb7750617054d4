"""Dumps with locally numbered groups: the answer on which all plausible meshes agree.

Nothing shows whose number 1 is the same group. But groups with one number are usually blocks of a
mesh, of one size and one stride, and what their members have finished must be consistent. Every
mesh that passes is diagnosed. The one with the fewest wrong ranks wins; if several tie, only what
all of them say counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, permutations

import numpy as np

from hangscope.diagnosis.groups.local_numbers import ambiguous_numbers
from hangscope.diagnosis.groups.memberships import (
    all_nameless,
    named_places,
    set_peers,
    sizes_of_groups,
)
from hangscope.diagnosis.groups.meshes import block, divisors
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.diagnosis.records.agreement import ONE_SIDED, Terms, disagreement, terms
from hangscope.diagnosis.records.coverage import rank_bounds, unreadable
from hangscope.trace import formats, operations
from hangscope.trace.model import NONE, Flag, Group, State, Trace, flagged

_MOST_RANKS = 512
_MOST_WAYS = 48
"""Limit on the meshes diagnosed; if more are possible, nothing is concluded."""
_MOST_LOST = 8
_FAILED = 1
_UNNAMED = 2
"""The cost of an answer without culprits: more than one wrong rank."""
_UNKNOWN = "who belongs to the groups is not listed; all regular meshes that fit say the same"

Judge = Callable[[Trace], Diagnosis]
Shape = tuple[int, int]
"""Stride and size of the groups with one number."""


def by_mesh_hypotheses(trace: Trace, judge: Judge) -> Diagnosis | None:
    """What the best meshes say about dumps with locally numbered groups.

    None for other traces, and if the meshes disagree or name nobody.
    """
    dumps = [s for s in trace.sources if s.format in formats.DUMPS]
    if not dumps or not all_nameless(trace) or len(dumps) != len(trace.sources):
        return None
    stated = sizes_of_groups(trace)
    numbers = ambiguous_numbers(trace, stated)
    world = _world(trace, [stated[index] for index in numbers if index in stated])
    if not numbers or not 1 < len(trace.ranks) <= _MOST_RANKS or world > 2 * len(trace.ranks):
        return None
    stories = {index: _stories(trace, index) for index in numbers}
    fitting = {
        index: shapes
        for index, of_ranks in stories.items()
        if (shapes := _shapes(of_ranks, trace, world, stated.get(index)))
    }
    if len(fitting) < len(numbers):
        return None  # a rank that waits in an unknown group may be right to do so
    meshes = list(islice(_meshes(fitting, world), _MOST_WAYS + 1))
    if not 0 < len(meshes) <= _MOST_WAYS:
        return None
    found = [judge(_shared_out(trace, mesh, world)) for mesh in meshes]
    costs = [
        _cost(answer) + _unsaid(stories, mesh, world)
        for answer, mesh in zip(found, meshes, strict=True)
    ]
    best = [answer for answer, cost in zip(found, costs, strict=True) if cost == min(costs)]
    if any(answer.verdict is Verdict.STUCK_COLLECTIVE for answer in best):
        best = found  # that is also what members of several groups look like, taken for one
    culprits = {answer.culprits for answer in best}
    if len(culprits) > 1 or not best[0].culprits:
        return None
    return _likely(best[0], trace)


def _world(trace: Trace, sizes: Sequence[int]) -> int:
    """The world size: the smallest that groups of these sizes partition; its last ranks may be
    lost.

    It has room for ranks whose dumps cannot be read, and for every place that a pair names.
    """
    beyond_ranks = [rank + 1 for rank in (*trace.ranks, *unreadable(trace))]
    least = max([trace.world_size or 0, *named_places(trace).values(), *beyond_ranks])
    wider = range(least, least + _MOST_LOST + 1)
    return next((world for world in wider if all(world % size == 0 for size in sizes)), least)


def _cost(answer: Diagnosis) -> int:
    """How implausible an answer is: wrong ranks, failing networks and devices."""
    return sum(
        len(f.culprits) if f.verdict is not Verdict.STUCK_COLLECTIVE else len(f.culprits) + _FAILED
        for f in answer.findings
        if f.culprits
    ) + sum(_UNNAMED for f in answer.findings if not f.culprits)


def _unsaid(
    stories: Mapping[int, Mapping[int, _Story]], mesh: Mapping[int, Shape], world: int
) -> int:
    """What else one would have to assume, as an answer leaves out what may follow from its cause.

    Each group beyond the first with mismatched operations needs a mistake of its own; each group
    whose members wait together, held up by nothing older, a network failure.
    """
    diverged = stuck = 0
    for index, (stride, size) in mesh.items():
        for members in {block(rank, stride, size, world) for rank in range(world)}:
            here = [stories[index][r] for r in members if r in stories[index]]
            longest = max((story.terms for story in here), key=len, default=[])
            differ = any(
                disagreement(a, b)
                for story in here
                for a, b in zip(story.terms, longest, strict=False)
            )
            diverged += differ
            stuck += (
                not differ
                and len({story.stands_at for story in here} - {NONE}) == 1
                and all(story.stands_at != NONE for story in here)
            )
    return max(diverged - 1, 0) + _UNNAMED * stuck


def _meshes(fitting: Mapping[int, set[Shape]], world: int) -> Iterator[dict[int, Shape]]:
    """Every mesh in which each number is a dimension or the whole job and has a shape that fits.

    One dimension may be used by no number.
    """
    for order in _orders(sorted(fitting)):
        inside = [index for index in order if index is not None]
        rest = {index: (1, world) for index in fitting if index not in inside}
        if any(shape not in fitting[index] for index, shape in rest.items()):
            continue
        for sizes in _factors(world, len(order)):
            shapes = dict(rest)
            stride = 1
            for index, size in zip(order, sizes, strict=True):
                if index is not None:
                    shapes[index] = (stride, size)
                stride *= size
            if all(shape in fitting[index] for index, shape in shapes.items()):
                yield shapes


def _orders(numbers: Sequence[int]) -> Iterator[tuple[int | None, ...]]:
    """Assignments of numbers to dimensions, innermost first; None is a dimension without a
    number."""
    for count in range(len(numbers) + 1):
        for chosen in permutations(numbers, count):
            if count != 1:
                yield chosen
            if count:
                yield from ((*chosen[:place], None, *chosen[place:]) for place in range(count + 1))


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as a product of ``count`` factors of at least two."""
    if not count:
        yield from [()]
    elif count == 1:
        yield from [(number,)] if number > 1 else []
    else:
        for first in divisors(number)[1:]:
            yield from ((first, *rest) for rest in _factors(number // first, count - 1))


def _likely(answer: Diagnosis, trace: Trace) -> Diagnosis:
    """The answer, capped at likely as its members are inferred."""
    findings = tuple(
        replace(
            finding,
            confidence=Confidence.LIKELY
            if finding.confidence is Confidence.CERTAIN
            else finding.confidence,
            unknowns=(*finding.unknowns, _UNKNOWN),
        )
        for finding in answer.findings
    )
    return replace(
        answer, confidence=findings[0].confidence, findings=findings, sources=trace.sources
    )


class _Story:
    """What one rank did in the groups with one number: terms and ends of its collectives in
    order."""

    def __init__(self) -> None:
        self.terms: list[Terms] = []
        self.over: list[bool] = []
        self.place = NONE
        """Its place in its group, if a p2p operation's name gives it."""
        self.whole = True
        """Whether its first collective is on record."""
        self.stands_at = NONE
        """Index of the rank's oldest unfinished operation, if it is one of these."""

    def finished(self) -> int:
        """How many collectives that need all members it has finished, counted to the last of
        them."""
        done = [
            i
            for i, (term, over) in enumerate(zip(self.terms, self.over, strict=True))
            if over and term.op not in ONE_SIDED
        ]
        return done[-1] + 1 if done else 0


def _stories(trace: Trace, group: int) -> dict[int, _Story]:
    """Each rank's story in the groups with one number."""
    found: dict[int, _Story] = defaultdict(_Story)
    flags = trace.records["flags"]
    of_signature = [terms(signature) for signature in trace.signatures]
    parsed = [operations.parse(signature.raw) for signature in trace.signatures]
    open_ = trace.records["state"] != int(State.COMPLETED)
    for rank, (low, high) in rank_bounds(trace).items():
        oldest = low + int(open_[low:high].argmax()) if open_[low:high].any() else NONE
        rows = low + np.flatnonzero(trace.records["group"][low:high] == group)
        if not len(rows):
            continue
        story = found[rank]
        story.whole = rank in trace.ranks and trace.ranks[rank].oldest_record_id <= 1
        for row in rows.tolist():
            signature = int(trace.records["signature"][row])
            name = parsed[signature]
            if operations.is_p2p(name.op):
                own = name.src if name.op == "send" else name.dst
                story.place = own if own >= 0 else story.place
            elif not int(flags[row]) & int(Flag.P2P | Flag.COALESCED_BATCH):
                story.stands_at = len(story.terms) if row == oldest else story.stands_at
                story.terms.append(of_signature[signature])
                story.over.append(not open_[row])
    return found


def _shapes(
    stories: Mapping[int, _Story], trace: Trace, world: int, size: int | None
) -> set[Shape]:
    """Every (stride, size) of blocks of the world that is consistent with what their members
    did."""
    known = all(story.whole and (story.terms or story.place != NONE) for story in stories.values())
    if stories.keys() != set(trace.ranks) or not known:
        return set()  # ranks in fewer groups than others give this number to another kind of group
    found = set()
    for length in divisors(world):
        if length < 2 or (size and length != size):
            continue
        for stride in divisors(world // length):
            blocks = {block(rank, stride, length, world) for rank in range(world)}
            if all(_fits(stories, members) for members in blocks):
                found.add((stride, length))
    return found


def _fits(stories: Mapping[int, _Story], members: Sequence[int]) -> bool:
    """Whether the members can have done together what they are known to have finished."""
    here = [stories[rank] for rank in members if rank in stories]
    if not all(
        stories[rank].place in (NONE, place)
        for place, rank in enumerate(members)
        if rank in stories
    ):
        return False
    if not here:
        return True
    finished = max(story.finished() for story in here)
    if any(len(story.terms) < finished for story in here):
        return False
    # A rank that finished an operation of all members received every member's part.
    first = max(here, key=lambda story: story.finished())
    return not any(
        (a_over or b_over) and disagreement(a, b)
        for story in here
        for a, b, a_over, b_over in zip(
            story.terms, first.terms, story.over, first.over, strict=False
        )
    )


def _shared_out(trace: Trace, mesh: Mapping[int, Shape], world: int) -> Trace:
    """The trace with these blocks as the groups of the numbers, and all ranks in the other
    groups."""
    records, members = trace.records.copy(), trace.members.copy()
    everybody = tuple(range(world))
    groups = [replace(g, ranks=everybody, desc="default_pg") for g in trace.groups]
    for index, (stride, size) in mesh.items():
        blocks = sorted({block(rank, stride, size, world) for rank in range(world)})
        number = trace.groups[index].name
        of_rank = np.zeros(world, np.int64)
        for place, ranks in enumerate(blocks):
            at = index if not place else len(groups)
            group = Group(f"{number} from rank {ranks[0]}", f"number {number}", ranks)
            if place:
                groups.append(group)
            else:
                groups[index] = group
            of_rank[list(ranks)] = at
        for table in (records, members):
            rows = table["group"] == index
            table["group"][rows] = of_rank[table["rank"][rows]]
    sources = tuple(replace(s, version="shared out") for s in trace.sources)
    made = replace(
        trace,
        records=records,
        members=members,
        groups=tuple(groups),
        sources=sources,
        world_size=world,
    )
    set_peers(made, np.flatnonzero(flagged(records["flags"], Flag.P2P)))
    return made
