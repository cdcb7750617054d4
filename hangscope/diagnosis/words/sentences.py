"""Summary and mechanism of a cause, in words."""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.ends.own_doing import own_errors
from hangscope.diagnosis.ends.threads import dead_thread, died_of
from hangscope.diagnosis.graph.places import INIT, Place
from hangscope.diagnosis.graph.stores import PREFIX as STORE
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.processes.host import Host, activity
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.trace.attempts.twins import doubled
from hangscope.trace.facts import LEFT
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


def label_of(context: Context, group: int) -> str:
    if 0 <= group < len(context.trace.groups):
        return context.trace.groups[group].label
    return "default"


def title_of(context: Context, place: Place) -> str:
    op = context.place_op(place)
    if place.phase:
        return place.phase
    if place.p2p and place.half is not None:
        other = "?" if place.half.peer == NONE else str(place.half.peer)
        arrow = f"{place.half.rank}→{other}" if place.half.is_send else f"{place.half.rank}←{other}"
        verb = "send" if place.half.is_send else "recv"
        return f"{verb} {arrow} #{place.seq} in group {label_of(context, place.group)}"
    return f"{op} #{place.seq} in group {label_of(context, place.group)}"


def members_of(place: Place) -> str:
    return f" ({rank_s(place.members)})" if place.members else ""


def address(context: Context, rank: int) -> str:
    facts = context.trace.ranks.get(rank)
    if facts is None:
        return ""
    words = []
    if facts.host:
        words.append(f"on host {facts.host}")
    if facts.pid:
        words.append(f"(pid {facts.pid})")
    return " ".join(words)


def is_are(ranks: Iterable[int]) -> str:
    """The verb after `rank_s`."""
    return "is" if len(set(ranks)) == 1 else "are"


def wait_s(ranks: Iterable[int]) -> str:
    """``waits`` or ``wait``, after `rank_s`."""
    return "waits" if len(set(ranks)) == 1 else "wait"


def _need(ranks: Iterable[int]) -> str:
    return "needs" if len(set(ranks)) == 1 else "need"


def sentences(context: Context, cause: Cause, place: Place | None) -> tuple[str, str]:
    who = _capital(rank_s(cause.culprits)) if cause.culprits else "Nobody"
    verdict = cause.verdict
    if cause.words[0]:
        return cause.words[0], cause.words[1]
    if cause.mismatch is not None:
        return _mismatch_sentences(context, cause)
    if verdict is Verdict.RANK_CRASHED:
        host = context.hosts[cause.culprits[0]]
        said = own_errors(context.trace.claims).get(cause.culprits[0])
        how = host.end_text or (
            shortened(said.text.splitlines()[0], 160) if said is not None else "ended"
        )
        summary = f"{who} crashed: {how}"
        if place is not None:
            summary += f"; others wait for it in {title_of(context, place)}"
        return (
            summary,
            f"{rank_s(cause.culprits)} ended; every rank that needs it waits or fails",
        )
    assert place is not None or verdict is Verdict.QUIESCENT
    if place is None:
        return "", ""
    title = title_of(context, place)
    waiters = rank_s(place.waiters) if place.waiters else "the others"
    if cause.crossed:
        return cause.crossed, "two halves were issued that cannot meet, and neither completes"
    if cause.conflict and verdict is Verdict.COLLECTIVE_MISMATCH:
        return (
            _capital(cause.conflict),
            "every rank makes every group, in one order: members find each other by the number of "
            "the call",
        )
    if cause.conflict:
        return (
            f"The sizes of {title}{members_of(place)} contradict each other: {cause.conflict}",
            "the exchange cannot complete with what its members announced",
        )
    if cause.odd_one:
        return (
            f"{who} alone issued {title}{members_of(place)}",
            f"{rank_s(cause.sides[0])} never issue it and wait for nobody; "
            f"{rank_s(cause.culprits)} waits there for ever",
        )
    if place.phase.startswith(STORE) and cause.culprits:
        has = "has" if len(cause.culprits) == 1 else "have"
        return (
            f"{who} {has} not set what {waiters} {wait_s(place.waiters)} for in {place.phase}",
            f"{waiters} {wait_s(place.waiters)} in the store for a key, and only "
            f"{rank_s(cause.culprits)} {is_are(cause.culprits)} elsewhere",
        )
    if verdict is Verdict.MISSING_RANK:
        if place.phase:
            return (
                f"{who} never reached {place.phase}",
                f"{waiters} {is_are(place.waiters)} inside {place.phase} and waiting for "
                f"{rank_s(cause.culprits)}",
            )
        dead = dead_thread(context, cause.culprits[0], place.group)
        if dead is not None:
            return (
                f"{who} never joined {title}{members_of(place)}: its {died_of(dead)}",
                f"that thread issued the operations of group {label_of(context, place.group)} on "
                f"rank {cause.culprits[0]}, and nothing issues them any more",
            )
        absent = context.host_in(cause.culprits[0], place.group)
        doing = activity(absent, context.trace.ranks.get(cause.culprits[0]))
        if absent is not None and absent.gone and doing == absent.end_text:
            doing = ""  # how it was ended is no activity
        last, _ = context.last_in_group(cause.culprits[0], place.group)
        gone = [r for r in cause.culprits if _has_left(context, r)]
        mechanism = (
            f"{rank_s(gone)} {'has' if len(gone) == 1 else 'have'} already called "
            "destroy_process_group" + (f" and {is_are(gone)} {doing}" if doing else "")
            if gone == list(cause.culprits)
            else f"{rank_s(cause.culprits)} {is_are(cause.culprits)} {_still(absent)}{doing}"
            if doing
            else f"{rank_s(cause.culprits)} issued nothing after #{last} of this group"
            if last
            else f"{rank_s(cause.culprits)} issued nothing in this group"
        )
        if place.p2p:
            return f"{who} never came to {title}", f"{mechanism}; {waiters} waits for its half"
        return (
            f"{who} never joined {title}{members_of(place)}",
            f"{mechanism}; {waiters} went on to #{place.seq} without "
            f"{'it' if len(cause.culprits) == 1 else 'them'}",
        )
    if verdict is Verdict.RANK_EXITED:
        return (
            f"{who} {_left(context, cause.culprits)} while {waiters} still "
            f"{_need(place.waiters)} it in {title}{members_of(place)}",
            f"{rank_s(cause.culprits)} finished early; the others have more to do",
        )
    if verdict is Verdict.RANK_LOST:
        left = "left no dump and no sign of life"
        why = {context.unreadable.get(rank, "") for rank in cause.culprits}
        if "" not in why:
            left = f"left a dump that cannot be read ({', '.join(sorted(why))[:80]})"
        elif context.trace.only_logs:
            left = f"{is_are(cause.culprits)} not heard of in the log"
        return (
            f"{who} {left}; {waiters} {wait_s(place.waiters)} in {title}",
            "nothing else explains the waiting",
        )
    if verdict is Verdict.DEADLOCK_CYCLE:
        return _circle_sentences(context, cause)
    if verdict is Verdict.P2P_UNMATCHED:
        half = place.half
        missing = "half" if half is None else "recv" if half.is_send else "send"
        its = "its" if len(cause.culprits) == 1 else "their"
        return (
            f"{who} never issued {its} {missing} for {title}",
            f"{waiters} waits for the other half of the pair",
        )
    if verdict is Verdict.STUCK_COLLECTIVE:
        facts = context.trace.ranks.get(cause.culprits[0]) if cause.culprits else None
        twice = doubled(context.trace).get(cause.culprits[0]) if cause.culprits else None
        if twice:
            return (
                f"{_capital(twice.partition(';')[0])}; {title} cannot finish",
                "what is meant for that rank reaches one of its processes, and the other waits",
            )
        if facts is not None and facts.process_state == "stopped":
            return (
                f"{who} {is_are(cause.culprits)} stopped inside {title}{members_of(place)}",
                f"{rank_s(cause.culprits)} issued the operation and was stopped before its part "
                "was done",
            )
        if place.phase:
            return (
                f"Everybody is in {title}{members_of(place)} and nobody finishes",
                "all ranks are there: the store at MASTER_ADDR is gone or cannot be reached, the "
                "network between the ranks is stuck"
                + (
                    ", or RANK or WORLD_SIZE was changed on some of them after the start"
                    if place.phase == INIT
                    else ""
                ),
            )
        if place.p2p:
            return (
                f"Both halves of {title} have come and neither finishes",
                "sender and receiver use different tags, or the network or a device is stuck",
            )
        if cause.culprits:
            return (
                f"{who} cannot finish {title}, which has completed on a peer",
                "the device or link of that rank is stuck, not its code",
            )
        return (
            f"Everybody is in {title}{members_of(place)} and nobody finishes",
            "all members issued the same operation: the network, a device or the library is stuck",
        )
    if verdict is Verdict.INCONCLUSIVE:
        return (
            f"{_capital(waiters)} {wait_s(place.waiters)} in {title}{members_of(place)}, and too "
            "little was given to name anyone",
            f"no dump of {rank_s(place.unknown)}" if place.unknown else "",
        )
    return f"{who}: {verdict.value}", ""


def _left(context: Context, ranks: Iterable[int]) -> str:
    """How ranks ended that ended well, as far as anybody knows."""
    ways = {context.hosts[rank].end_text for rank in ranks}
    return (
        "exited with status 0"
        if ways == {"exit status 0"}
        else "left by itself, with a status nobody saw,"
    )


def _has_left(context: Context, rank: int) -> bool:
    """Whether a rank has torn its groups down and gone on."""
    facts = context.trace.ranks.get(rank)
    inside = facts is not None and any(p.name == "destroy_process_group" for p in facts.phases)
    return facts is not None and bool(facts.finalized) and not inside


def _mismatch_sentences(context: Context, cause: Cause) -> tuple[str, str]:
    mismatch = cause.mismatch
    assert mismatch is not None
    label = label_of(context, mismatch.group)
    members = context.trace.groups[mismatch.group].ranks
    where_ = f"#{mismatch.seq} of group {label}" + (f" ({rank_s(members)})" if members else "")
    parts = []
    for part in mismatch.parts[:4]:
        words = describe(context.signature(part.shown))
        if mismatch.aspect == "root":
            words += f" root {int(context.trace.records['root'][part.shown])}"
        if mismatch.inside >= 0:
            batch = context.signature(part.row)
            words += f" as operation {mismatch.inside + 1} of {batch.op if batch else 'a batch'}"
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
    why = f"{aspect}, so this collective cannot complete or returns garbage"
    if leaving := mismatch.leaving(context.trace.records):
        why += f"; {rank_s(leaving)} issued it {_out_of_turn(context, leaving)}"
    return summary, why


def _out_of_turn(context: Context, ranks: list[int]) -> str:
    """That it was no step of the program, and which step that broke off where it is known."""
    left = {
        where(innermost(thread.stack))
        for rank in ranks
        for thread in context.trace.ranks[rank].threads
        if thread.source == LEFT
    }
    words = f"in a signal handler or on {'its' if len(ranks) == 1 else 'their'} way out"
    return f"{words}, called away from {left.pop()}" if len(left) == 1 and "" not in left else words


def is_held_up(host: Host | None) -> bool:
    """Whether no code of the process can run."""
    return host is not None and host.state in ("stopped", "gil-held")


def _still(host: Host | None) -> str:
    """What a rank is in, it is still in; stopped it simply is."""
    return "" if is_held_up(host) else "still "


def _circle_sentences(context: Context, cause: Cause) -> tuple[str, str]:
    places = [context.waits.places[i] for i in cause.places]
    ranks = set(cause.culprits) | {r for s in cause.sides for r in s}
    steps = []
    for place in places[:4]:
        inside = [r for r in place.targets if r in ranks]
        steps.append(
            f"{rank_s(place.waiters)} {wait_s(place.waiters)} in {title_of(context, place)} "
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
