"""From the wait-for graph to causes: who or what every waiting rank ends up waiting for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hangscope.diagnosis.context import SECOND_NS, Context
from hangscope.diagnosis.exchange import size_conflict
from hangscope.diagnosis.host import End, Host, in_communication, own_errors
from hangscope.diagnosis.mismatch import Mismatch
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.stacks import innermost
from hangscope.diagnosis.waits import Place, components, hidden_ranks, recorded_ranks
from hangscope.diagnosis.yardstick import decide_mismatch, deviants
from hangscope.trace.model import NONE


@dataclass(slots=True)
class Cause:
    """One reason, before it is put into words."""

    verdict: Verdict
    culprits: tuple[int, ...]
    places: list[int] = field(default_factory=list)
    confidence: Confidence = Confidence.CERTAIN
    began_ns: int = 0
    victims: set[int] = field(default_factory=set)
    sides: list[tuple[int, ...]] = field(default_factory=list)
    mismatch: Mismatch | None = None
    odd_one: bool = False
    """The culprit issued what nobody else did, instead of failing to issue what all others did."""
    conflict: str = ""
    """How the sizes of an exchange contradict each other."""
    unknowns: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)


def overdue_only(context: Context) -> None:
    """On a live job, forget waiting that has not lasted: slow is not hung.

    A place that waits for a rank that has ended needs no timeout, and then accuses only that rank.
    """
    trace, hosts = context.trace, context.hosts
    if not trace.live:
        return
    limit = trace.timeout_s
    kept: list[int] = []
    for index, place in enumerate(context.waits.places):
        ages = [context.age_s(r, place.began_ns) for r in place.waiters]
        known = [a for a in ages if a is not None]
        if known and max(known) >= limit:
            kept.append(index)
            continue
        ended = [
            r
            for r in (place.absent or place.behind)
            if r in hosts and hosts[r].end in (End.CLEAN, End.CRASHED) and not hosts[r].secondary
        ]
        if ended:
            if place.absent:
                place.absent = ended
            else:
                place.behind = ended
            place.unknown = []
            kept.append(index)
    keep = set(kept)
    for rank, indexes in context.waits.places_of.items():
        context.waits.places_of[rank] = [i for i in indexes if i in keep]
    for index, place in enumerate(context.waits.places):
        if index not in keep:
            place.waiters, place.absent, place.behind, place.unknown = [], [], [], []
    context.waits.device = {r: i for r, i in context.waits.device.items() if i in keep}


def graph_causes(context: Context) -> list[Cause]:
    """Every sink of the graph is a cause."""
    waits = context.waits
    waits.cut |= set(waits.device)
    on_device = set(waits.device.values())
    waited_for = waits.waited_for()
    for rank, host in context.hosts.items():
        blocked_for_good = host.state in ("stopped", "gil-held")
        own_end = host.end is End.CLEAN or (host.end is End.CRASHED and not host.secondary)
        if (blocked_for_good or own_end) and rank in waited_for:
            waits.cut.add(rank)
    causes: list[Cause] = []
    roots: list[int] = []
    sinks = components(waits)
    idle = {r for ranks, places in sinks if places and ranks for r in _only_sent(context, ranks)}
    if idle:
        waits.cut |= idle
        sinks = components(waits)
    for ranks, places in sinks:
        if len(ranks) == 1 and not places:
            root = next(iter(ranks))
            if root not in waits.device:
                roots.append(root)
        elif not ranks:
            causes += [
                _stuck(context, i) for i in places if waits.places[i].waiters and i not in on_device
            ]
        else:
            causes.append(_circle(context, ranks, places))
    causes = _with_suspects(context, causes)
    causes += _device(context)
    causes += _from_roots(context, roots)
    for cause in causes:
        cause.victims |= waits.reachers(cause.culprits, cause.places) - set(cause.culprits)
    return causes


def _with_suspects(context: Context, causes: list[Cause]) -> list[Cause]:
    """Where nobody knows who belongs to a waiting group: whoever waits for nothing is suspect.

    A rank whose watchdog had nothing overdue while all others' had, or that left nothing at all,
    is the one they wait for; too many of those and nothing can be said.
    """
    waits, trace = context.waits, context.trace
    open_ended = [
        c
        for c in causes
        if c.verdict in (Verdict.STUCK_COLLECTIVE, Verdict.INCONCLUSIVE)
        and not c.culprits
        and len(c.places) == 1
        and 0 <= waits.places[c.places[0]].group < len(trace.groups)
        and not trace.groups[waits.places[c.places[0]].group].ranks
    ]
    if not open_ended:
        return causes
    idle = tuple(
        sorted(r for r, h in context.hosts.items() if not waits.places_of.get(r) and not _ended(h))
    )
    suspects = idle or context.gaps
    rest = [c for c in causes if c not in open_ended]
    places = sorted(i for c in open_ended for i in c.places)
    total = len(set(trace.ranks) | set(context.gaps))
    victims = {w for i in places for w in waits.places[i].waiters}
    if suspects and len(suspects) * 2 < total and len(victims) > len(suspects):
        verdict = Verdict.MISSING_RANK if idle else Verdict.RANK_LOST
        confidence = Confidence.LIKELY if len(suspects) == 1 else Confidence.AMBIGUOUS
        cause = Cause(verdict, suspects, places, confidence, _began(context, places), victims)
        cause.unknowns.append("who belongs to the waiting groups is not listed")
        return [*rest, cause]
    if len(open_ended) > 1:
        cause = Cause(
            Verdict.INCONCLUSIVE, (), places, Confidence.LIKELY, _began(context, places), victims
        )
        cause.unknowns.append("who belongs to the waiting groups is not listed")
        return [*rest, cause]
    return causes


def _ended(host: Host) -> bool:
    return host.end is End.CLEAN or (host.end is End.CRASHED and not host.secondary)


def _only_sent(context: Context, ranks: set[int]) -> list[int]:
    """Ranks of a circle that have nothing unfinished but sends, where others really wait.

    A send is fired and forgotten as a rule: such a rank need not be waiting at all.
    """
    waits = context.waits
    weak = [r for r in ranks if all(waits.places[i].weak for i in waits.out(r))]
    if len(weak) == len(ranks):
        return []
    return [r for r in weak if not in_communication(context.hosts[r].stack)]


def rank_list(ranks: tuple[int, ...]) -> str:
    """``rank 3`` or ``ranks 3, 5``, at most eight of them."""
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _began(context: Context, places: list[int]) -> int:
    known = [context.waits.places[i].began_ns for i in places if context.waits.places[i].began_ns]
    return min(known, default=0)


def _device(context: Context) -> list[Cause]:
    """Ranks whose oldest collective has completed elsewhere, together where they share a group."""
    waits = context.waits
    if not waits.device:
        return []
    waited_for = waits.waited_for()
    sets = _Union(waits.device)
    for index in {i for rank in waits.device for i in waited_for.get(rank, ())}:
        here = [r for r in waits.places[index].members if r in waits.device]
        sets.join(here)
    causes = []
    for ranks in sets.parts():
        places = sorted({waits.device[r] for r in ranks})
        causes.append(
            Cause(
                Verdict.STUCK_COLLECTIVE,
                tuple(sorted(ranks)),
                places,
                Confidence.LIKELY,
                _began(context, places),
            )
        )
    return causes


def _stuck(context: Context, index: int) -> Cause:
    place = context.waits.places[index]
    cause = Cause(Verdict.STUCK_COLLECTIVE, (), [index], began_ns=place.began_ns)
    conflict = size_conflict(context, place)
    if conflict is not None:
        cause.verdict = (
            Verdict.DTYPE_MISMATCH if conflict.aspect == "dtype" else Verdict.SHAPE_MISMATCH
        )
        cause.culprits = conflict.ranks
        cause.confidence = Confidence.LIKELY if conflict.decided else Confidence.AMBIGUOUS
        cause.conflict = conflict.text
        return cause
    if place.blind:
        cause.verdict = Verdict.INCONCLUSIVE
        cause.confidence = Confidence.LIKELY
        cause.unknowns.append("the records do not say whom the waiting send or recv is meant for")
    lost = context.overrun.intersection(place.waiters)
    if lost:
        cause.verdict = Verdict.INCONCLUSIVE
        cause.confidence = Confidence.LIKELY
        cause.unknowns.append(
            f"the oldest unfinished operations of {len(lost)} ranks have been overwritten"
        )
    cause.victims = set(place.waiters)
    if place.p2p:
        cause.victims.update(place.members)
    return cause


def _circle(context: Context, ranks: set[int], places: set[int]) -> Cause:
    """A circle of waiting: who has to be taken out to break it?"""
    waits = context.waits
    chosen = sorted(places)
    began = _began(context, chosen)
    sides_of: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in sorted(ranks):
        sides_of[tuple(i for i in waits.out(rank) if i in places)].append(rank)
    sides = sorted((tuple(r) for r in sides_of.values()), key=lambda s: (-len(s), s))
    cause = Cause(Verdict.DEADLOCK_CYCLE, tuple(sorted(ranks)), chosen, began_ns=began, sides=sides)
    lonely = [i for i in chosen if waits.places[i].p2p]
    made_up = any(
        not context.trace.groups[g].ranks for g in (waits.places[i].group for i in chosen)
    )
    if context.unlisted or (made_up and context.gaps):
        cause.verdict, cause.culprits = Verdict.INCONCLUSIVE, ()
        cause.confidence, cause.victims = Confidence.LIKELY, set(ranks)
        cause.unknowns.append(f"members are not listed, and {rank_list(context.gaps)} left no dump")
        return cause
    groups = {waits.places[i].group for i in chosen} - {NONE}
    if lonely:
        _circle_of_pairs(context, cause, ranks, groups, lonely)
        return cause
    breakers = [r for r in sorted(ranks) if _breaks(waits_places(context, places), ranks, r)]
    if len(breakers) == 1:
        cause.culprits = (breakers[0],)
    elif len(sides) == 2 and len(sides[1]) < len(sides[0]):
        cause.culprits = sides[1]
    else:
        odd = deviants(context, ranks, groups)
        odd = odd if len(odd) * 2 <= len(ranks) else ()
        cause.culprits = odd or cause.culprits
        cause.confidence = Confidence.LIKELY if odd else Confidence.AMBIGUOUS
    return cause


def _circle_of_pairs(
    context: Context, cause: Cause, ranks: set[int], groups: set[int], lonely: list[int]
) -> None:
    """A circle with sends or receives in it: did one rank leave its half out?"""
    waits = context.waits
    blank = {r for r in ranks if r in context.trace.ranks and context.trace.ranks[r].only_active}
    odd = () if blank else deviants(context, ranks, groups)
    closed = _among_themselves(context, set(odd)) if len(odd) > 1 else set()
    if closed:
        cause.culprits = tuple(sorted(closed))
        cause.confidence = Confidence.LIKELY
        return  # they wait for one another
    if len(odd) * 2 > len(ranks):
        odd = ()  # where most of them left the pattern, it is the code of all
    if odd:
        cause.confidence = Confidence.LIKELY
    elif len(lonely) < len(cause.places):
        places = waits_places(context, set(cause.places))
        breakers = [r for r in sorted(ranks) if _breaks(places, ranks, r)]
        if len(breakers) == 1:
            cause.culprits = (breakers[0],)
            return
        if len(lonely) == 1 and waits.places[lonely[0]].absent:
            # One side waits for a partner that has gone on to something that needs this side.
            half = waits.places[lonely[0]]
            held = {t for r in half.absent for i in waits.out(r) for t in waits.places[i].targets}
            odd = tuple(half.absent) if held & set(half.waiters) else ()
            if len(ranks) > 2 and ranks & hidden_ranks(context.trace):
                cause.confidence = Confidence.LIKELY
    if not odd:
        if len(lonely) < len(cause.places) or ranks & hidden_ranks(context.trace):
            cause.confidence = Confidence.AMBIGUOUS
        return
    cause.culprits = odd
    due = [i for i, p in enumerate(waits.places) if p.p2p and set(p.targets) & set(odd)]
    if due:
        cause.verdict = Verdict.P2P_UNMATCHED
        cause.places = due + [i for i in cause.places if i not in due]


def _among_themselves(context: Context, ranks: set[int]) -> set[int]:
    """The circle of receives that ``ranks`` are part of, if each waits for one who never sent."""
    waits = context.waits
    closed, queue = set(ranks), list(ranks)
    while queue:
        rank = queue.pop()
        wanted = {
            t for i in waits.out(rank) if waits.places[i].p2p for t in waits.places[i].targets
        }
        if not wanted:
            return set()
        queue += wanted - closed
        closed |= wanted
    return closed


def waits_places(context: Context, places: set[int]) -> list[Place]:
    """The places of a component."""
    return [context.waits.places[i] for i in sorted(places)]


def _breaks(places: list[Place], ranks: set[int], without: int) -> bool:
    """Whether the circle falls apart once ``without`` is taken out of it."""
    remaining = [
        (
            [r for r in p.waiters if r in ranks and r != without],
            [r for r in p.targets if r in ranks and r != without],
        )
        for p in places
    ]
    waiting: dict[int, list[int]] = defaultdict(list)
    for index, (waiters, _) in enumerate(remaining):
        for rank in waiters:
            waiting[rank].append(index)
    # Peel off everything that waits for nobody; what is left is a circle.
    open_targets = [len(set(targets)) for _, targets in remaining]
    into: dict[int, list[int]] = defaultdict(list)
    for index, (_, targets) in enumerate(remaining):
        for rank in set(targets):
            into[rank].append(index)
    left = {r: len(waiting.get(r, ())) for r in ranks if r != without}
    queue = [r for r, n in left.items() if n == 0]
    free_places = [i for i, n in enumerate(open_targets) if n == 0]
    removed = 0
    while queue or free_places:
        while free_places:
            for rank in remaining[free_places.pop()][0]:
                left[rank] -= 1
                if left[rank] == 0:
                    queue.append(rank)
        if queue:
            rank = queue.pop()
            removed += 1
            for index in into.get(rank, ()):
                open_targets[index] -= 1
                if open_targets[index] == 0:
                    free_places.append(index)
    return removed == len(left)


class _Union:
    """Which ranks belong together."""

    def __init__(self, ranks: object) -> None:
        self.parent = {r: r for r in ranks}  # type: ignore[attr-defined]

    def find(self, rank: int) -> int:
        while self.parent[rank] != rank:
            self.parent[rank] = self.parent[self.parent[rank]]
            rank = self.parent[rank]
        return rank

    def join(self, ranks: list[int]) -> None:
        for a, b in pairwise(ranks):
            self.parent[self.find(a)] = self.find(b)

    def parts(self) -> list[list[int]]:
        result: dict[int, list[int]] = defaultdict(list)
        for rank in self.parent:
            result[self.find(rank)].append(rank)
        return sorted(result.values())


def _from_roots(context: Context, roots: list[int]) -> list[Cause]:
    """Ranks that are waited for and wait for nobody."""
    waits, hosts = context.waits, context.hosts
    waited_for = waits.waited_for()
    roots = [r for r in roots if waited_for.get(r)]
    lost = [r for r in roots if r not in context.trace.ranks]
    known = [r for r in roots if r in context.trace.ranks]
    causes: list[Cause] = []
    by_kind: dict[Verdict, list[int]] = defaultdict(list)
    for rank in known:
        by_kind[_verdict_of_root(context, rank, waited_for[rank])].append(rank)
    for verdict, ranks in by_kind.items():
        sets = _Union(ranks)
        member = set(ranks)
        for index in {i for r in ranks for i in waited_for[r]}:
            sets.join([r for r in waits.places[index].targets if r in member])
        for part in sets.parts():
            places = sorted({i for r in part for i in waited_for[r]})
            causes += _root_cause(context, verdict, tuple(sorted(part)), places)
    explained: set[int] = set()
    for cause in causes:
        explained |= waits.reachers(cause.culprits, cause.places)
    by_end = {r: hosts[r] for r in known}
    del by_end
    causes += _lost(context, lost, waited_for, explained)
    return causes


def _root_cause(
    context: Context, verdict: Verdict, ranks: tuple[int, ...], places: list[int]
) -> list[Cause]:
    waits = context.waits
    cause = Cause(verdict, ranks, places, began_ns=_began(context, places))
    if not any(set(ranks) & set(p.absent + p.behind) for p in (waits.places[i] for i in places)):
        cause.confidence = Confidence.LIKELY
        cause.unknowns.append("what the accused issued is not on record; nobody else is left")
    if verdict in (Verdict.MISSING_RANK, Verdict.RANK_EXITED):
        odd = _odd_one(context, ranks, places)
        if odd:
            cause.verdict = Verdict.COLLECTIVE_MISMATCH
            cause.culprits = odd
            cause.odd_one = True
            cause.confidence = Confidence.LIKELY
            cause.victims = set(ranks)
            cause.sides = [ranks, odd]
            cause.places = [i for i in places if set(waits.places[i].waiters) & set(odd)]
    return [cause]


def _odd_one(context: Context, absent: tuple[int, ...], places: list[int]) -> tuple[int, ...]:
    """The ranks that wait, where fewer ranks wait than are waited for and those are at one.

    Three ranks that all finished are not wrong because a fourth issued one more collective.
    """
    waits = context.waits
    if any(waits.places[i].phase or waits.places[i].p2p for i in places):
        return ()
    waiters = sorted({r for i in places for r in waits.places[i].waiters})
    if len(waiters) >= len(absent) or len(absent) < 2:
        return ()
    if len({waits.places[i].group for i in places}) != 1:
        return ()
    fronts = {context.last_in_group(r, waits.places[places[0]].group)[0] for r in absent}
    if len(fronts) != 1:
        return ()
    hosts = [context.hosts.get(r) for r in absent]
    if any(h is not None and h.state in ("stopped", "gil-held") for h in hosts):
        return ()
    doing = set()
    for rank, host in zip(absent, hosts, strict=True):
        facts = context.trace.ranks.get(rank)
        if host is None or facts is None:
            return ()
        if host.end is End.CLEAN or facts.finalized:
            doing.add("finished")
        elif host.phase is not None:
            doing.add(host.phase)
        else:
            frame = innermost(host.stack)
            doing.add(f"{frame.filename}:{frame.name}" if frame is not None else "")
    return tuple(waiters) if len(doing) == 1 else ()


def _verdict_of_root(context: Context, rank: int, places: list[int]) -> Verdict:
    host = context.hosts[rank]
    if host.end is End.CRASHED or rank in own_errors(context.trace.claims):
        return Verdict.RANK_CRASHED
    if host.end is End.CLEAN:
        return Verdict.RANK_EXITED
    only_p2p = all(context.waits.places[i].p2p for i in places)
    seen_elsewhere = bool(host.stack) or host.phase is not None or host.frozen
    if only_p2p and not seen_elsewhere:
        return Verdict.P2P_UNMATCHED
    return Verdict.MISSING_RANK


def _lost(
    context: Context, lost: list[int], waited_for: dict[int, list[int]], explained: set[int]
) -> list[Cause]:
    """Ranks without a dump, where someone waits for them and nothing else explains it."""
    waits = context.waits
    accused = []
    # Who shares a group with a known cause may well be waiting for it too.
    excused = {
        r
        for place in waits.places
        if explained.intersection(place.waiters)
        for r in place.unknown
        if place.absent or place.behind
    }
    for rank in lost:
        if rank in excused:
            continue
        waiters = {w for i in waited_for[rank] for w in waits.places[i].waiters}
        if waiters - explained:
            accused.append(rank)
    made_up = any(not g.ranks for g in context.trace.groups)
    if not accused or (made_up and explained):
        return []  # who shares a group with the known cause is not listed
    places = sorted({i for r in accused for i in waited_for[r]})
    idle = _idle_beside(context, accused)
    if 0 < len(idle) <= len(accused):
        # Were the lost rank the cause, its neighbours would be waiting for it.
        cause = Cause(
            Verdict.MISSING_RANK, idle, places, Confidence.LIKELY, _began(context, places)
        )
        cause.victims = set(accused)
        return [cause]
    began = _began(context, places)
    total = len(set(context.trace.ranks) | set(context.gaps))
    # Half a world without dumps is a collection that failed, or one node's log.
    if len(accused) * 2 >= total and len(accused) > 1:
        cause = Cause(Verdict.INCONCLUSIVE, (), places, Confidence.LIKELY, began)
        cause.unknowns.append(f"{len(accused)} of {total} ranks left no dump")
        cause.victims = {w for i in places for w in waits.places[i].waiters}
        return [cause]
    confidence = Confidence.LIKELY if len(accused) == 1 else Confidence.AMBIGUOUS
    return [Cause(Verdict.RANK_LOST, tuple(sorted(accused)), places, confidence, began)]


def _idle_beside(context: Context, lost: list[int]) -> tuple[int, ...]:
    """Ranks in a group with a lost one that wait for nobody although the job stands still."""
    beside = {r for g in context.trace.groups if set(lost) & set(g.ranks) for r in g.ranks}
    beside &= recorded_ranks(context.trace)
    return tuple(
        sorted(
            r
            for r in beside
            if not context.waits.places_of.get(r)
            and not context.hosts[r].gone
            and not context.trace.ranks[r].finalized
        )
    )


def mismatch_causes(context: Context, found: list[Mismatch]) -> list[Cause]:
    """One cause per first disagreement; a later one between the same ranks is its consequence."""
    from hangscope.diagnosis.mismatch import minority

    causes: list[Cause] = []
    records = context.trace.records
    dated = sorted(
        found, key=lambda m: (min(int(records["created_ns"][p.row]) for p in m.parts), m.group)
    )
    for item in dated:
        members = {r for p in item.parts for r in p.ranks}
        if any(members & (set(c.culprits) | c.victims) for c in causes):
            continue
        culprits, decided = minority(item.parts)
        confidence = Confidence.CERTAIN if decided else Confidence.AMBIGUOUS
        if not decided:
            unlike = decide_mismatch(context, item)
            if unlike:
                culprits, confidence = unlike, Confidence.LIKELY
        elif item.aspect == "history":
            confidence = Confidence.LIKELY
        verdict = {
            "op": Verdict.COLLECTIVE_MISMATCH,
            "history": Verdict.COLLECTIVE_MISMATCH,
            "numel": Verdict.SHAPE_MISMATCH,
            "dtype": Verdict.DTYPE_MISMATCH,
        }.get(item.aspect, Verdict.ARGUMENT_MISMATCH)
        group_members = set(context.trace.groups[item.group].ranks) | members
        cause = Cause(
            verdict,
            culprits,
            began_ns=max(int(records["created_ns"][p.row]) for p in item.parts),
            confidence=confidence,
            mismatch=item,
            sides=[p.ranks for p in item.parts],
        )
        cause.victims = context.waits.reachers(group_members) | group_members
        cause.victims -= set(culprits)
        causes.append(cause)
    return causes


def crash_causes(context: Context, causes: list[Cause]) -> list[Cause]:
    """Failures of a rank's own that no graph cause speaks of: everyone else was torn down."""
    from hangscope.diagnosis.host import primary_crashes

    waits = context.waits
    crashed = [r for r, h in context.hosts.items() if h.end is End.CRASHED]
    waits_on = {
        r: {t for i in waits.places_of.get(r, ()) for t in waits.places[i].targets} for r in crashed
    }
    found = primary_crashes(context.hosts, waits_on)
    blamed = {r for c in causes for r in c.culprits}
    rest = [h for h in found if h.rank not in blamed]
    if not rest:
        return []
    cause = Cause(
        Verdict.RANK_CRASHED,
        tuple(sorted(h.rank for h in rest)),
        began_ns=min((h.end_ns for h in rest if h.end_ns), default=0),
    )
    cause.victims = {
        r
        for r, h in context.hosts.items()
        if h.rank not in cause.culprits and (h.end is End.TORN_DOWN or h.secondary)
    }
    return [cause]


def settle(context: Context, causes: list[Cause]) -> list[Cause]:
    """Drop causes that are consequences of others and put the first one first."""
    limit_ns = int(context.trace.timeout_s * SECOND_NS)
    deaths = {
        r: h.end_ns for r, h in context.hosts.items() if h.end is End.CRASHED and not h.secondary
    }
    crashes = [c for c in causes if c.verdict is Verdict.RANK_CRASHED]
    genuine = [c for c in crashes if any(r in deaths for r in c.culprits)]
    kept: list[Cause] = []
    for cause in causes:
        if cause.verdict is Verdict.RANK_CRASHED and genuine and cause not in genuine:
            continue
        if cause.verdict in (
            Verdict.MISSING_RANK,
            Verdict.P2P_UNMATCHED,
            Verdict.STUCK_COLLECTIVE,
            Verdict.DEADLOCK_CYCLE,
            Verdict.RANK_LOST,
            Verdict.INCONCLUSIVE,
        ):
            died = [deaths[r] for c in genuine for r in c.culprits if deaths.get(r)]
            if genuine and (
                not died or not cause.began_ns or min(died) - cause.began_ns < limit_ns
            ):
                for crash in genuine:
                    crash.victims |= (cause.victims | set(cause.culprits)) - set(crash.culprits)
                continue
        kept.append(cause)
    parted = [c for c in kept if c.mismatch is not None]
    result = []
    for cause in kept:
        if cause.mismatch is None:
            involved = set(cause.culprits) | cause.victims
            absorbing = [
                m
                for m in parted
                if involved & (set(m.culprits) | m.victims)
                and not (m.mismatch is not None and m.mismatch.completed_by_all)
                and not _own_crash_before(context, cause, m)
            ]
            if absorbing:
                for m in absorbing:
                    m.victims |= involved - set(m.culprits)
                continue
        elif cause.mismatch.completed_by_all and len(kept) > 1:
            cause.confidence = Confidence.LIKELY
        result.append(cause)
    result.sort(
        key=lambda c: (
            bool(c.mismatch is not None and c.mismatch.completed_by_all),
            c.verdict is Verdict.INCONCLUSIVE,
            c.began_ns or 1 << 62,
            -len(c.victims),
        )
    )
    return result


def _own_crash_before(context: Context, cause: Cause, mismatch: Cause) -> bool:
    if cause.verdict is not Verdict.RANK_CRASHED:
        return False
    ends = [context.hosts[r].end_ns for r in cause.culprits if r in context.hosts]
    return bool(ends) and all(e and mismatch.began_ns and e < mismatch.began_ns for e in ends)


def as_victims(hosts: dict[int, Host]) -> dict[int, Host]:
    """Every rank was ended from outside: no end is anybody's own doing."""
    return {r: replace(h, end=End.TORN_DOWN, secondary=True) for r, h in hosts.items()}


def lasting_only(context: Context) -> None:
    """Of a job that was killed from outside, keep only waiting that was a hang already."""
    limit = min(context.trace.timeout_s, max(2.0, 20 * _usual_gap_s(context)))
    waits = context.waits
    for index, place in enumerate(waits.places):
        ages = [context.age_s(r, place.began_ns) for r in place.waiters]
        if max((a for a in ages if a is not None), default=0.0) < limit:
            for rank in place.waiters:
                waits.places_of[rank] = [i for i in waits.places_of.get(rank, ()) if i != index]
            place.waiters, place.absent, place.behind, place.unknown = [], [], [], []
    waits.device = {r: i for r, i in waits.device.items() if waits.places[i].waiters}


def _usual_gap_s(context: Context) -> float:
    """Median time between operations of one rank, in seconds."""
    import numpy as np

    created = context.trace.records["created_ns"]
    same = np.diff(context.trace.records["rank"]) == 0
    gaps = np.diff(created)[same]
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) / SECOND_NS if len(gaps) else 0.0


def was_moving(context: Context) -> str | None:
    """A remark, if dumps were taken while the job still moved; None where that cannot be said.

    A dump written seconds after its last record shows a moment, not a standstill. Only a complete
    set of dumps with credible times counts, and no process that ended.
    """
    trace = context.trace
    if trace.live or trace.claims or trace.missing_ranks:
        return None
    if any(h.end is not End.UNKNOWN for h in context.hosts.values()):
        return None
    quiet_s = []
    for rank, facts in trace.ranks.items():
        low, high = context.bounds.get(rank, (0, 0))
        if low == high:
            continue
        part = trace.records[low:high]
        last = max(int(part["created_ns"].max()), int(part["completed_ns"].max()))
        gap = facts.observed_ns - last
        if not facts.observed_ns or not last or gap <= 0:
            return None  # the time of the dump is not known
        quiet_s.append(gap / SECOND_NS)
    if not quiet_s:
        return None
    limit = min(_MOVING_MAX_S, max(_MOVING_S, 2 * _longest_gap_s(context)))
    if max(quiet_s) >= limit:
        return None
    return f"the job was still moving when it was dumped, {max(quiet_s):.1f} s after its last step"


def forget_waiting(context: Context) -> None:
    """Drop every place: nothing has lasted."""
    context.waits.places.clear()
    context.waits.places_of.clear()
    context.waits.device.clear()


_MOVING_S = 5.0
_MOVING_MAX_S = 60.0


def _longest_gap_s(context: Context) -> float:
    """The longest time any rank was seen to take from one operation to the next, in seconds."""
    import numpy as np

    created = context.trace.records["created_ns"]
    same = np.diff(context.trace.records["rank"]) == 0
    gaps = np.diff(created)[same]
    return float(gaps.max()) / SECOND_NS if len(gaps) else 0.0
