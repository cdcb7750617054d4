"""A cause put into words: summary, mechanism, fix, evidence and both sides."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.ends.own_doing import own_errors
from hangscope.diagnosis.ends.threads import dead_thread, race_of_threads
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.graph.stores import PREFIX as STORE
from hangscope.diagnosis.model import Confidence, Finding, Side, Verdict
from hangscope.diagnosis.processes.failures import is_secondary
from hangscope.diagnosis.processes.host import End
from hangscope.diagnosis.processes.stacks import innermost, user_frames, where
from hangscope.diagnosis.records.agreement import numel
from hangscope.diagnosis.words import playbook
from hangscope.diagnosis.words.seen import evidence
from hangscope.diagnosis.words.sentences import address, rank_s, sentences
from hangscope.diagnosis.words.sides import guarded, in_backward, sides_of
from hangscope.trace.attempts.twins import doubled
from hangscope.trace.model import NONE, Flag

_OF_THE_MOST = (Verdict.STUCK_COLLECTIVE, Verdict.DEADLOCK_CYCLE)
"""What counts ranks: a log may hold some of them only."""


def to_finding(context: Context, cause: Cause) -> Finding:
    """Put one cause into words."""
    place = _shown_place(context, cause)
    summary, why = sentences(context, cause, place)
    sides = sides_of(context, cause, place)
    advice = _advice(context, cause, place, sides)
    group = None
    seq: int | None = None
    op: str | None = None
    if cause.mismatch is not None:
        group = context.group_ref(cause.mismatch.group)
        seq = cause.mismatch.seq
        signature = context.signature(cause.mismatch.parts[0].row)
        op = signature.op if signature else None
    elif place is not None:
        group = context.group_ref(place.group, place.members)
        seq = place.seq if not place.phase else None
        op = context.place_op(place)
    cause = replace(cause, unknowns=list(cause.unknowns))
    missing = {*context.trace.missing_ranks, *context.unrecorded}
    unread = context.unreadable.keys() - missing  # lists made up from what was read lack them
    if missing and cause.verdict is not Verdict.RANK_LOST:
        cause.doubt(f"{rank_s(sorted(missing))} left no dump")
    if unread and cause.verdict is not Verdict.RANK_LOST:
        cause.doubt(f"what {rank_s(sorted(unread))} left cannot be read")
    if cause.verdict is Verdict.P2P_UNMATCHED and cause.confidence is Confidence.CERTAIN:
        hosts = [context.hosts.get(rank) for rank in cause.culprits]
        if any(host is None or host.state == "unknown" for host in hosts):
            # One side has a half too many or the other one too few: dumps alone do not tell.
            cause.doubt("nothing shows what that rank does instead")
    shown = place.group if place is not None else NONE
    if shown >= 0 and not context.trace.groups[shown].ranks and not place_is_pair(place):
        cause.doubt("the members of the group are not listed; the dumps given stand for them")
    majority = cause.mismatch is not None or cause.verdict in _OF_THE_MOST
    if majority and cause.confidence is Confidence.CERTAIN and _from_logs_alone(context):
        cause.confidence = Confidence.LIKELY  # a log may hold some of the ranks only
    if cause.verdict is Verdict.RANK_EXITED and _status_unseen(context, cause):
        cause.doubt("nobody saw with which status the accused ended")
    for rank in cause.culprits:
        facts = context.trace.ranks.get(rank)
        if facts is not None and facts.unobservable:
            cause.doubt(f"rank {rank}: {', '.join(facts.unobservable)} leaves no record")
    return Finding(
        verdict=cause.verdict,
        culprits=cause.culprits,
        victims=tuple(sorted(cause.victims - set(cause.culprits))),
        confidence=cause.confidence,
        summary=summary,
        why=why,
        fix=advice.fix,
        playbook=advice.playbook,
        group=group,
        seq=seq,
        op=op,
        sides=sides,
        evidence=(*evidence(context, cause, place), *cause.evidence),
        unknowns=tuple(cause.unknowns),
        began_ns=cause.began_ns,
    )


def _from_logs_alone(context: Context) -> bool:
    """Whether no operation was recorded: all were concluded from what somebody wrote."""
    flags, synthetic = context.trace.records["flags"], int(Flag.SYNTHETIC)
    return bool((flags[:1] & synthetic).all() and (flags & synthetic).all())


def _shown_place(context: Context, cause: Cause) -> Place | None:
    """The place to show: where a culprit is due and the waiting began first."""
    places = [context.waits.places[i] for i in cause.places]
    if not places:
        return None
    if cause.odd_one:
        places = [p for p in places if set(p.waiters) & set(cause.culprits)] or places
    culprits = set(cause.culprits)

    def rank_of(place: Place) -> tuple[int, bool, int, int]:
        due = len(culprits.intersection(place.targets))
        if cause.verdict is Verdict.P2P_UNMATCHED and not place.p2p:
            due = -1
        return (-due, place.p2p, place.began_ns or 1 << 62, -len(place.waiters))

    return min(places, key=rank_of)


def _another_call(sides: tuple[Side, ...], aspect: str) -> bool:
    """Whether calls of different lines met, whose tensors were never meant for each other.

    Sizes differ from call to call; a dtype alone may differ because one line casts.
    """
    known = [s for s in sides if s.stack and s.input_sizes is not None]
    return (
        len(known) > 1
        and len({s.stack for s in known}) == len(known)
        and len({numel(s.input_sizes) for s in known}) > 1
        and (aspect == "numel" or len({s.dtypes for s in known}) > 1)
    )


def _crossed_handles(context: Context, cause: Cause, sides: tuple[Side, ...]) -> bool:
    """Whether one call of all ranks went to several groups that have the same members."""
    groups = {context.waits.places[i].group for i in cause.places}
    members = {frozenset(context.trace.groups[g].ranks) for g in groups if g >= 0}
    return (
        len(groups) > 1
        and len(members) == 1
        and bool(sides)
        and bool(sides[0].stack)
        and len({(s.stack, s.op, s.input_sizes) for s in sides}) == 1
    )


def _status_unseen(context: Context, cause: Cause) -> bool:
    """Whether one that left quietly may have given up: it had not said that it was done either."""
    facts = [context.trace.ranks[rank] for rank in cause.culprits if rank in context.trace.ranks]
    return any(
        f.exit is not None and f.exit.kind == "clean" and f.exit.code is None and not f.finalized
        for f in facts
    )


def _same_half_first(context: Context, cause: Cause, sides: tuple[Side, ...]) -> bool:
    """Whether all of a circle stand at one line, in one kind of half each."""
    pairs = all(context.waits.places[i].p2p for i in cause.places)
    return pairs and len(sides) > 1 and len({(s.stack, s.op) for s in sides}) == 1


def place_is_pair(place: Place | None) -> bool:
    """Whether the place is half of a pair, which names its partner itself."""
    return place is not None and place.p2p


def _advice(
    context: Context, cause: Cause, place: Place | None, sides: tuple[Side, ...]
) -> playbook.Advice:
    if cause.words[2]:
        return playbook.Advice(cause.words[2], "D19")
    if cause.mismatch is not None:
        aspect = cause.mismatch.aspect
        advice = playbook.mismatch(aspect, guarded(sides))
        if aspect == "numel" and sides and all(in_backward(s) for s in sides):
            advice = playbook.buckets()
        elif (aspect == "numel" and guarded(sides)) or _another_call(sides, aspect):
            advice = playbook.mismatch("op", guarded(sides))
        if race_of_threads(context, cause.mismatch):
            advice = playbook.two_threads()
        if cause.mismatch.leaving(context.trace.records):
            advice = playbook.leave_together()
        lines = [where(s.stack[0]) for s in sides[:2] if s.stack]
        return _comparing(advice, cause, lines[::-1])
    if cause.crossed:
        line = where(sides[0].stack[0]) if sides and sides[0].stack else "its call"
        advice = playbook.by_verdict(cause.verdict, "")
        what = "tag" if cause.conflict else "source or destination rank"
        return replace(advice, fix=f"check the {what} that {line} names")
    if cause.conflict and cause.verdict is Verdict.COLLECTIVE_MISMATCH:
        return playbook.new_groups()
    if cause.conflict and place is not None and place.phase:
        return playbook.missing(None, "", True, False)
    exchange = place is not None and not place.p2p
    if cause.conflict and exchange and cause.verdict is Verdict.SHAPE_MISMATCH:
        return playbook.splits()
    if cause.conflict:
        return playbook.mismatch(
            "dtype" if cause.verdict is Verdict.DTYPE_MISMATCH else "numel", False
        )
    if cause.odd_one:
        advice = playbook.mismatch("op", True)
        absent = cause.sides[0]
        hosts = [context.hosts[r] for r in absent]
        seen = [h.stack for h in hosts if h.end is not End.CRASHED and h.stack]
        if not seen or any(h.end is End.CLEAN for h in hosts):
            return advice
        stands = where(innermost(seen[0]))
        held = (
            f"; if {rank_s(absent)} wait at {stands} for a lock or a file, "
            f"{rank_s(cause.culprits)} holds it across the collective"
        )
        return playbook.Advice(advice.fix + held, advice.playbook)
    if doubled(context.trace) and cause.verdict in (Verdict.STUCK_COLLECTIVE, Verdict.RANK_LOST):
        ranks = rank_s(doubled(context.trace))
        return playbook.Advice(
            f"give every process a RANK of its own: two processes say that they are {ranks}",
            "D1, D4",
        )
    rank = cause.culprits[0] if cause.culprits else NONE
    host = context.host_in(rank, place.group) if place is not None else context.hosts.get(rank)
    facts = context.trace.ranks.get(rank)
    at = address(context, rank)
    stopped = facts is not None and facts.process_state == "stopped"
    dead = dead_thread(context, rank, place.group) if place is not None else None
    if dead is not None and cause.verdict is Verdict.MISSING_RANK:
        line = where(innermost(dead.stack))
        return playbook.dead_thread(dead.thread_name, " ".join(x for x in (line, at) if x))
    if place is not None and place.phase.startswith(STORE):
        return playbook.key_to_set(playbook.place_of(host, at))
    if cause.verdict is Verdict.MISSING_RANK or (
        cause.verdict is Verdict.STUCK_COLLECTIVE and stopped
    ):
        first = bool(place is not None and place.phase == "init_process_group")
        return playbook.missing(host, at, first, bool(facts and facts.finalized))
    detail = ""
    if cause.verdict is Verdict.RANK_CRASHED and host is not None:
        frame = None
        if facts is not None and facts.exception is not None:
            frames = user_frames(facts.exception.stack)
            frame = frames[0] if frames else None
        detail = " ".join(x for x in (where(frame), at) if x)
        said = own_errors(context.trace.claims).get(rank)
        message = facts.exception.message if facts is not None and facts.exception else ""
        text = " ".join((host.end_text, message, said.text if said is not None else ""))
        return playbook.crash(text, detail)
    if cause.verdict is Verdict.RANK_LOST:
        detail = at
    thread = facts.exception if facts is not None else None
    if cause.verdict is Verdict.RANK_EXITED and thread is not None and not thread.is_main_thread:
        line = where(innermost(thread.stack))
        if not is_secondary(thread.message):
            return playbook.dead_thread(thread.thread_name, " ".join(x for x in (line, at) if x))
    advice = playbook.by_verdict(cause.verdict, detail)
    lines = [where(s.stack[0]) for s in sides if s.stack]
    if cause.verdict is Verdict.DEADLOCK_CYCLE and _crossed_handles(context, cause, sides):
        return playbook.crossed_handles(lines[0])
    if cause.verdict is Verdict.DEADLOCK_CYCLE and _same_half_first(context, cause, sides):
        return playbook.ring_of_waits(sides[0].op or "recv")
    if cause.verdict is Verdict.DEADLOCK_CYCLE and len(sides) == len(set(lines)) == 2:
        accused = 0 if set(sides[0].ranks) <= set(cause.culprits) else 1
        return _comparing(advice, cause, [lines[accused], lines[1 - accused]])
    return advice


def _comparing(advice: playbook.Advice, cause: Cause, lines: list[str]) -> playbook.Advice:
    """Which two lines to look at: those where the ranks parted first, or else where they stand.

    ``lines``: that of the accused, and that of the others.
    """
    if cause.parted is not None:
        seq, mine, theirs = cause.parted
        pair = f"{mine} with {theirs}, where they parted at #{seq}"
    elif len(set(lines)) == 2:
        pair = f"{lines[0]} with {lines[1]}"
    else:
        return advice
    return replace(advice, fix=f"{advice.fix}: compare {pair}")
