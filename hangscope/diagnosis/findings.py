"""A cause put into words: summary, mechanism, fix, evidence and both sides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hangscope.diagnosis import playbook
from hangscope.diagnosis.causes import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.host import End, activity, own_errors
from hangscope.diagnosis.model import Confidence, Finding, Side, Verdict
from hangscope.diagnosis.stacks import parting, user_frames, where
from hangscope.diagnosis.waits import Place, recorded_ranks
from hangscope.trace.model import NONE, Signature


def spell(ranks: Iterable[int], limit: int = 12) -> str:
    """``0-3, 6``: ranges with an en dash, shortened after ``limit`` of them."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = []
    for low, high in runs:
        if high - low > 1:
            words.append(f"{low}–{high}")
        else:
            words += [str(r) for r in range(low, high + 1)]
    if len(words) > limit:
        return ", ".join(words[:limit]) + f" and {len(words) - limit} more"
    return ", ".join(words)


def rank_s(ranks: Iterable[int]) -> str:
    """``rank 2`` or ``ranks 0–3``."""
    ordered = sorted(set(ranks))
    return f"rank {ordered[0]}" if len(ordered) == 1 else f"ranks {spell(ordered)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def to_finding(context: Context, cause: Cause) -> Finding:
    """Put one cause into words."""
    place = _shown_place(context, cause)
    summary, why = _sentences(context, cause, place)
    sides = _sides(context, cause, place)
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
    unknowns = list(cause.unknowns)
    confidence = cause.confidence
    missing = context.trace.missing_ranks
    if missing and cause.verdict is not Verdict.RANK_LOST:
        unknowns.append(f"{rank_s(missing)} left no dump")
        if confidence is Confidence.CERTAIN:
            confidence = Confidence.LIKELY
    shown = place.group if place is not None else NONE
    if shown >= 0 and not context.trace.groups[shown].ranks and not place_is_pair(place):
        unknowns.append("the members of the group are not listed; the dumps given stand for them")
        if confidence is Confidence.CERTAIN:
            confidence = Confidence.LIKELY
    if cause.verdict is Verdict.STUCK_COLLECTIVE and not recorded_ranks(context.trace):
        confidence = Confidence.LIKELY  # a log may hold some of the ranks only
    for rank in cause.culprits:
        facts = context.trace.ranks.get(rank)
        if facts is not None and facts.unobservable:
            unknowns.append(f"rank {rank}: {', '.join(facts.unobservable)} leaves no record")
            if confidence is Confidence.CERTAIN:
                confidence = Confidence.LIKELY
    return Finding(
        verdict=cause.verdict,
        culprits=cause.culprits,
        victims=tuple(sorted(cause.victims - set(cause.culprits))),
        confidence=confidence,
        summary=summary,
        why=why,
        fix=advice.fix,
        playbook=advice.playbook,
        group=group,
        seq=seq,
        op=op,
        sides=sides,
        evidence=tuple(_evidence(context, cause, place)),
        unknowns=tuple(unknowns),
        began_ns=cause.began_ns,
    )


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


def place_is_pair(place: Place | None) -> bool:
    """Whether the place is half of a pair, which names its partner itself."""
    return place is not None and place.p2p


def _title(context: Context, place: Place) -> str:
    op = context.place_op(place)
    if place.phase:
        return place.phase
    if place.p2p and place.half is not None:
        other = "?" if place.half.peer == NONE else str(place.half.peer)
        arrow = f"{place.half.rank}→{other}" if place.half.is_send else f"{place.half.rank}←{other}"
        verb = "send" if place.half.is_send else "recv"
        return f"{verb} {arrow} #{place.seq} in group {_label(context, place.group)}"
    return f"{op} #{place.seq} in group {_label(context, place.group)}"


def _label(context: Context, group: int) -> str:
    if 0 <= group < len(context.trace.groups):
        return context.trace.groups[group].label
    return "default"


def _members(place: Place) -> str:
    return f" ({rank_s(place.members)})" if place.members else ""


def _sentences(context: Context, cause: Cause, place: Place | None) -> tuple[str, str]:
    who = _capital(rank_s(cause.culprits)) if cause.culprits else "Nobody"
    verdict = cause.verdict
    if cause.mismatch is not None:
        return _mismatch_sentences(context, cause)
    if verdict is Verdict.RANK_CRASHED:
        host = context.hosts[cause.culprits[0]]
        said = own_errors(context.trace.claims).get(cause.culprits[0])
        how = host.end_text or (said.text.splitlines()[0][:160] if said is not None else "ended")
        summary = f"{who} crashed: {how}"
        if place is not None:
            summary += f"; others wait for it in {_title(context, place)}"
        return (
            summary,
            f"{rank_s(cause.culprits)} ended; every rank that needs it waits or fails",
        )
    assert place is not None or verdict is Verdict.QUIESCENT
    if place is None:
        return "", ""
    title = _title(context, place)
    waiters = rank_s(place.waiters) if place.waiters else "the others"
    if cause.conflict:
        return (
            f"The sizes of {title}{_members(place)} contradict each other: {cause.conflict}",
            "the exchange cannot complete with what its members announced",
        )
    if cause.odd_one:
        return (
            f"{who} alone issued {title}{_members(place)}",
            f"{rank_s(cause.sides[0])} never issue it and wait for nobody; "
            f"{rank_s(cause.culprits)} waits there for ever",
        )
    if verdict is Verdict.MISSING_RANK:
        if place.phase:
            return (
                f"{who} never reached {place.phase}",
                f"{waiters} {_is(place.waiters)} inside {place.phase} and {_is(place.waiters)} "
                f"waiting for {rank_s(cause.culprits)}",
            )
        doing = activity(
            context.hosts.get(cause.culprits[0]), context.trace.ranks.get(cause.culprits[0])
        )
        last, _ = context.last_in_group(cause.culprits[0], place.group)
        mechanism = (
            f"{rank_s(cause.culprits)} {_is(cause.culprits)} still {doing}"
            if doing
            else f"{rank_s(cause.culprits)} stopped after #{last} of this group"
        )
        if place.p2p:
            return f"{who} never came to {title}", f"{mechanism}; {waiters} waits for its half"
        return (
            f"{who} never joined {title}{_members(place)}",
            f"{mechanism}; {waiters} went on to #{place.seq} without "
            f"{'it' if len(cause.culprits) == 1 else 'them'}",
        )
    if verdict is Verdict.RANK_EXITED:
        return (
            f"{who} exited with status 0 while {waiters} still {_need(place.waiters)} it "
            f"in {title}{_members(place)}",
            f"{rank_s(cause.culprits)} finished early; the others have more to do",
        )
    if verdict is Verdict.RANK_LOST:
        return (
            f"{who} left no dump and no sign of life; {waiters} {_wait(place.waiters)} in {title}",
            "nothing else explains the waiting",
        )
    if verdict is Verdict.DEADLOCK_CYCLE:
        return _circle_sentences(context, cause)
    if verdict is Verdict.P2P_UNMATCHED:
        half = place.half
        missing = "send" if half is not None and not half.is_send else "recv"
        return (
            f"{who} never issued its {missing} for {title}",
            f"{waiters} waits for the other half of the pair",
        )
    if verdict is Verdict.STUCK_COLLECTIVE:
        if cause.culprits:
            return (
                f"{who} cannot finish {title}, which has completed on a peer",
                "the device or link of that rank is stuck, not its code",
            )
        return (
            f"Everybody is in {title}{_members(place)} and nobody finishes",
            "all members issued the same operation: the network, a device or the library is stuck",
        )
    if verdict is Verdict.INCONCLUSIVE:
        return (
            f"{_capital(waiters)} {_wait(place.waiters)} in {title}{_members(place)}, and too "
            "little was given to name anyone",
            f"no dump of {rank_s(place.unknown)}" if place.unknown else "",
        )
    return f"{who}: {verdict.value}", ""


def _is(ranks: Iterable[int]) -> str:
    return "is" if len(set(ranks)) == 1 else "are"


def _wait(ranks: Iterable[int]) -> str:
    return "waits" if len(set(ranks)) == 1 else "wait"


def _need(ranks: Iterable[int]) -> str:
    return "needs" if len(set(ranks)) == 1 else "need"


def describe(signature: Signature | None) -> str:
    """``all_reduce float32[4096]``-like words for one operation."""
    if signature is None:
        return "nothing"
    words = signature.op
    dtypes = signature.input_dtypes or signature.output_dtypes
    sizes = signature.input_sizes or signature.output_sizes
    if sizes:
        shown = ",".join("x".join(map(str, size)) or "scalar" for size in sizes[:3])
        words += f" {dtypes[0] if dtypes else ''}[{shown}]"
    elif signature.input_numel is not None:
        words += f" of {signature.input_numel} elements"
    if signature.reduce_op:
        words += f" {signature.reduce_op}"
    return words


def _mismatch_sentences(context: Context, cause: Cause) -> tuple[str, str]:
    mismatch = cause.mismatch
    assert mismatch is not None
    label = _label(context, mismatch.group)
    members = context.trace.groups[mismatch.group].ranks
    where_ = f"#{mismatch.seq} of group {label}" + (f" ({rank_s(members)})" if members else "")
    parts = []
    for part in mismatch.parts[:4]:
        signature = context.signature(part.row)
        words = describe(signature)
        if mismatch.aspect == "root":
            words += f" root {int(context.trace.records['root'][part.row])}"
        parts.append(f"{rank_s(part.ranks)} issued {words}")
    if mismatch.aspect == "history":
        summary = f"{_capital(rank_s(cause.culprits))} had parted from the others before {where_}"
        return summary, "the running hashes differ although the operations on record agree"
    if cause.confidence is Confidence.AMBIGUOUS:
        summary = f"At {where_} {'; '.join(parts)}"
    else:
        ordered = parts[1:] + parts[:1]
        summary = f"At {where_} {', '.join(ordered[:-1])} while {ordered[-1]}"
    aspect = {
        "op": "the operations differ",
        "numel": "the element counts differ",
        "dtype": "the dtypes differ",
        "reduce_op": "the reduce operations differ",
        "root": "the roots differ",
    }[mismatch.aspect]
    return summary, f"{aspect}, so this collective cannot complete or returns garbage"


def _circle_sentences(context: Context, cause: Cause) -> tuple[str, str]:
    places = [context.waits.places[i] for i in cause.places]
    ranks = set(cause.culprits) | {r for s in cause.sides for r in s}
    steps = []
    for place in places[:4]:
        inside = [r for r in place.targets if r in ranks]
        steps.append(
            f"{rank_s(place.waiters)} {_wait(place.waiters)} in {_title(context, place)} "
            f"for {rank_s(inside or place.targets)}"
        )
    if set(cause.culprits) == ranks:
        summary = f"{_capital(rank_s(ranks))} wait for each other in a circle"
    else:
        summary = (
            f"{_capital(rank_s(cause.culprits))} took another order than the others: "
            "they wait for each other in a circle"
        )
    return summary, "; ".join(steps)


def _address(context: Context, rank: int) -> str:
    facts = context.trace.ranks.get(rank)
    if facts is None:
        return ""
    words = []
    if facts.host:
        words.append(f"on host {facts.host}")
    if facts.pid:
        words.append(f"(pid {facts.pid})")
    return " ".join(words)


def _side_of_row(context: Context, ranks: tuple[int, ...], row: int, seq: int, op: str) -> Side:
    signature = context.signature(row)
    stack = context.stack(row)
    record = context.trace.records[row] if row >= 0 else None
    ages = (
        [context.age_s(r, int(record["created_ns"])) for r in ranks[:1]]
        if (record is not None)
        else [None]
    )
    root = int(record["root"]) if record is not None and record["root"] >= 0 else None
    peer = int(record["peer"]) if record is not None and record["peer"] >= 0 else None
    return Side(
        ranks=ranks,
        op=signature.op if signature is not None else op,
        seq=seq,
        input_sizes=signature.input_sizes if signature else None,
        output_sizes=signature.output_sizes if signature else None,
        dtypes=(signature.input_dtypes or signature.output_dtypes) if signature else None,
        reduce_op=signature.reduce_op if signature else None,
        root=root,
        peer=peer,
        stack=user_frames(stack),
        full_stack=stack,
        waiting_s=ages[0],
    )


def _side_of_absent(context: Context, ranks: tuple[int, ...], group: int) -> Side:
    rank = ranks[0]
    host = context.hosts.get(rank)
    facts = context.trace.ranks.get(rank)
    last_seq, row = context.last_in_group(rank, group) if group >= 0 else (0, NONE)
    signature = context.signature(row)
    stack = host.stack if host is not None else ()
    exception = facts.exception if facts is not None else None
    if exception is not None and exception.stack and (host is None or host.gone):
        stack = exception.stack
    since = int(context.trace.records["created_ns"][row]) if row >= 0 else 0
    return Side(
        ranks=ranks,
        op=None,
        seq=None,
        stack=user_frames(stack),
        full_stack=stack,
        activity=activity(host, facts),
        last_op=signature.op if signature is not None else None,
        last_seq=last_seq or None,
        last_age_s=context.age_s(rank, since) if since else None,
    )


def _sides(context: Context, cause: Cause, place: Place | None) -> tuple[Side, ...]:
    sides: list[Side] = []
    if cause.mismatch is not None:
        sides = [
            _side_of_row(context, p.ranks, p.row, cause.mismatch.seq, "")
            for p in cause.mismatch.parts
        ]
    elif cause.verdict is Verdict.DEADLOCK_CYCLE or (
        cause.verdict is Verdict.P2P_UNMATCHED and cause.sides
    ):
        for ranks in cause.sides:
            here = [context.waits.places[i] for i in cause.places]
            mine = [p for p in here if ranks[0] in p.waiters]
            if mine:
                sides.append(
                    _side_of_row(
                        context, ranks, mine[0].row, mine[0].seq, context.place_op(mine[0])
                    )
                )
    elif place is not None:
        if place.waiters:
            sides.append(
                _side_of_row(
                    context,
                    tuple(sorted(place.waiters)),
                    place.row,
                    place.seq,
                    context.place_op(place),
                )
            )
        others = [r for r in place.targets if r not in cause.culprits and r not in place.waiters]
        absent = tuple(sorted(cause.culprits)) if not cause.odd_one else cause.sides[0]
        if absent and not set(absent) <= set(place.waiters):
            sides += [_side_of_absent(context, (r,), place.group) for r in absent[:8]]
            if len(absent) > 8:
                sides.append(_side_of_absent(context, tuple(absent[8:]), place.group))
        del others
    elif cause.culprits:
        sides = [_side_of_absent(context, (r,), NONE) for r in cause.culprits[:8]]
    return _with_parting(sides)


def _with_parting(sides: list[Side]) -> tuple[Side, ...]:
    return tuple(
        replace(
            side,
            differs_at=parting(side.stack, [s.stack for s in sides if s is not side]),
        )
        for side in sides
    )


def _advice(
    context: Context, cause: Cause, place: Place | None, sides: tuple[Side, ...]
) -> playbook.Advice:
    if cause.mismatch is not None:
        advice = playbook.mismatch(cause.mismatch.aspect, _guarded(sides))
        if cause.mismatch.aspect == "numel" and sides and all(_in_backward(s) for s in sides):
            advice = playbook.buckets()
        lines = [where(s.stack[0]) for s in sides[:2] if s.stack]
        if len(set(lines)) == 2:
            advice = replace(advice, fix=f"{advice.fix}: compare {lines[1]} with {lines[0]}")
        return advice
    if cause.conflict:
        return playbook.mismatch(
            "dtype" if cause.verdict is Verdict.DTYPE_MISMATCH else "numel", False
        )
    if cause.odd_one:
        return playbook.mismatch("op", True)
    rank = cause.culprits[0] if cause.culprits else NONE
    host = context.hosts.get(rank)
    facts = context.trace.ranks.get(rank)
    address = _address(context, rank)
    if cause.verdict is Verdict.MISSING_RANK:
        first = bool(place is not None and place.phase == "init_process_group")
        return playbook.missing(host, address, first, bool(facts and facts.finalized))
    detail = ""
    if cause.verdict is Verdict.RANK_CRASHED and host is not None:
        frame = None
        if facts is not None and facts.exception is not None:
            frames = user_frames(facts.exception.stack)
            frame = frames[0] if frames else None
        detail = " ".join(x for x in (where(frame), address) if x)
        said = own_errors(context.trace.claims).get(rank)
        message = facts.exception.message if facts is not None and facts.exception else ""
        text = " ".join((host.end_text, message, said.text if said is not None else ""))
        return playbook.crash(text, detail)
    if cause.verdict is Verdict.RANK_LOST:
        detail = address
    return playbook.by_verdict(cause.verdict, detail)


def _in_backward(side: Side) -> bool:
    """Whether autograd issued the operation: a gradient bucket of DDP, as a rule."""
    return side.op == "all_reduce" and any(f.name == "backward" for f in side.full_stack)


def _guarded(sides: tuple[Side, ...]) -> bool:
    """Whether one side stands in a function that the other is not in at all.

    Another line of the same function is the other branch of a choice; another function is
    something that only one side does.
    """
    tops = [s.stack[0] for s in sides if s.stack]
    if len(tops) < 2:
        return False
    functions = [{f.name for f in s.stack} for s in sides if s.stack]
    return any(
        top.name not in other
        for i, top in enumerate(tops)
        for k, other in enumerate(functions)
        if i != k
    )


def _evidence(context: Context, cause: Cause, place: Place | None) -> list[str]:
    lines = []
    places = [context.waits.places[i] for i in cause.places]
    ordered = sorted(places, key=lambda p: (p is not place, p.began_ns or 1 << 62))
    for p in ordered[:6]:
        if not p.waiters:
            continue
        line = f"{rank_s(p.waiters)} {_wait(p.waiters)} in {_title(context, p)}"
        age = context.age_s(p.waiters[0], p.began_ns)
        if age is not None:
            line += f" for {age:.0f} s"
        if p.absent:
            line += f"; {rank_s(p.absent)} never issued it"
        elif p.behind:
            line += f"; {rank_s(p.behind)} issued it but is held up by something older"
        if p.done:
            line += f"; {rank_s(p.done)} finished it"
        lines.append(line)
    for rank in cause.culprits[:8]:
        host = context.hosts.get(rank)
        facts = context.trace.ranks.get(rank)
        if host is None or facts is None:
            lines.append(f"rank {rank}: no dump and no log")
            continue
        words = [f"rank {rank}:"]
        if host.end in (End.CRASHED, End.CLEAN, End.TORN_DOWN):
            words.append(host.end_text)
        elif context.waits.out(rank):
            words.append("waiting")
        elif host.state != "unknown":
            words.append(host.state)
        doing = activity(host, facts)
        if doing and doing != host.end_text:
            words.append(f"({doing})")
        if len(words) > 1:
            lines.append(" ".join(words))
    involved = set(cause.culprits)
    for claim in context.trace.claims:
        if involved & set(claim.accused) or (claim.reporter in involved and claim.text):
            lines.append(f"log: {claim.text[:200]}")
            if len(lines) > 16:
                break
    return lines
