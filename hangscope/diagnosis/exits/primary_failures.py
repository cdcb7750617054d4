"""Which ranks ended by their own doing, judged by comparing how all ranks ended.

A launcher ends all ranks once one has failed, and peers fail because of its failure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hangscope.diagnosis.exits.lost_peers import aborted_first, lost_peer_ns
from hangscope.diagnosis.exits.stops import (
    ANSWERED_NS,
    left_by_itself,
    with_isolated_stops,
    without_echoes_of_stop,
)
from hangscope.diagnosis.observability import is_text_alone, of_text, unrecorded
from hangscope.diagnosis.processes.active_thread import newest_threads
from hangscope.diagnosis.processes.embedded_exceptions import failed_ranks, own_places
from hangscope.diagnosis.processes.failures import broke_over_gloo, compared_models
from hangscope.diagnosis.processes.process_state import (
    End,
    ProcessState,
    in_communication,
    is_unseen,
    process_of,
)
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.model import Claim, RankFacts, Trace

_TWIN_NS = 2_000_000_000


def judge_ends(trace: Trace) -> dict[int, ProcessState]:
    """The `ProcessState` of every rank that any source mentions."""
    threads = newest_threads(trace)
    of_host: dict[str | None, dict[int, int]] = defaultdict(dict)
    for rank, facts in trace.ranks.items():
        if facts.pid:
            of_host[facts.host][facts.pid] = rank
    processes = {
        rank: process_of(facts, threads.get(rank), of_host[facts.host])
        for rank, facts in trace.ranks.items()
    }
    processes = without_echoes_of_stop(_named_by_all(processes, trace), trace)
    processes = _with_reactions(with_isolated_stops(processes, trace), trace)
    return _victims_of_launcher(processes, trace)


def _victims_of_launcher(
    processes: dict[int, ProcessState], trace: Trace
) -> dict[int, ProcessState]:
    """Reclassify aborts that a log explains. A watchdog abort after a timeout is a victim's end,
    and Gloo aborts the rank that receives a message of an unexpected size, whichever side is wrong.
    Without a log, an abort in an exchange may be of that kind if a member of it left nothing."""
    unranked = bool(trace.missing_ranks or unrecorded(trace))
    timed_out = {c.reporter for c in trace.claims if c.kind == "timeout" and c.reporter is not None}
    got_other_size = {c.reporter for c in trace.claims if c.kind == "size_mismatch"}
    alone, lost, told = aborted_alone(trace), lost_peer_ns(trace), of_text(trace)
    result = dict(processes)
    for rank, process in processes.items():
        exit_ = trace.ranks[rank].exit
        if process.end is not End.CRASHED or exit_ is None or not exit_.aborted:
            continue
        unnamed = None in got_other_size and trace.ranks[rank].exception is None
        # Text alone does not show why a process aborted itself: usually its watchdog timed out.
        silent = rank in told and trace.ranks[rank].exception is None and rank != alone
        exchanging = (
            unranked and not trace.ranks[rank].exception and in_communication(process.stack)
        )
        victim = rank in timed_out or rank in got_other_size or rank in lost
        if victim or unnamed or silent or exchanging:
            result[rank] = replace(process, secondary=True)
    return result


def aborted_alone(trace: Trace) -> int | None:
    """The only rank that aborted itself, if all others just report broken connections.

    That decides over Gloo, which has no watchdog, if nobody had waited until a timeout and nobody
    received more than it had asked for. Over NCCL, those who lost a peer abort themselves as well.
    """
    first = aborted_first(trace)
    if first is not None:
        return first
    aborted = [rank for rank, f in trace.ranks.items() if f.exit is not None and f.exit.aborted]
    said = [f.exception for f in trace.ranks.values() if f.exception is not None]
    broken = bool(said) and all(map(broke_over_gloo, said))
    gave_up = any(c.kind in ("timeout", "size_mismatch") for c in trace.claims)
    return aborted[0] if len(aborted) == 1 and broken and not gave_up else None


def _named_by_all(processes: dict[int, ProcessState], trace: Trace) -> dict[int, ProcessState]:
    """If every rank raises because some failed and the message names those, only they failed."""
    result = dict(processes)
    places = own_places(trace)
    for rank, process in processes.items():
        exception = trace.ranks[rank].exception
        failed = failed_ranks(exception.message) if exception is not None else None
        if failed and process.end is End.CRASHED:
            result[rank] = replace(process, secondary=places.get(rank, rank) not in failed)
    return _with_another_model(result, trace)


def _with_another_model(
    processes: dict[int, ProcessState], trace: Trace
) -> dict[int, ProcessState]:
    """If DDP finds differing models, every rank raises: those with the most common size are right.

    The message numbers the members of DDP's group: whom else it names is known only if each
    author's number is its rank.
    """
    messages = {}
    for rank, process in processes.items():
        message = compared_models(trace.ranks[rank].exception)
        if message is not None and process.end is End.CRASHED:
            messages[rank] = message
    sizes = {rank: message.own for rank, message in messages.items()}
    if all(message.place == rank for rank, message in messages.items()):
        sizes = {message.other: message.theirs for message in messages.values()} | sizes
    if not is_text_alone(trace):  # for logs, each message is compared word by word
        processes = {
            r: replace(h, secondary=False) if r in messages else h for r, h in processes.items()
        }
    usual = [size for size, count in Counter(sizes.values()).items() if count * 2 > len(sizes)]
    if len(sizes) < 3 or not usual:
        return processes
    right = {rank for rank in messages if sizes[rank] == usual[0]}
    return {r: replace(h, secondary=True) if r in right else h for r, h in processes.items()}


def _with_reactions(processes: dict[int, ProcessState], trace: Trace) -> dict[int, ProcessState]:
    """Ends that may be reactions to an earlier one on their host, whose clock dates both.

    A rank of unobserved end that was alive after a failure was ended by the launcher, or with it.
    One that left only an exit status raised as it lost another: a rank that a signal killed, or one
    that left without destroying its groups, if others report what that breaks. Where all failures
    came after ranks had been stopped, nobody failed: those ranks were told to stop, too, and saved
    first, or raised.
    """
    ranks, quiet = trace.ranks, unrecorded(trace)
    crashed = [process for process in processes.values() if process.end is End.CRASHED]
    unseen = {h.rank for h in crashed if is_unseen(ranks[h.rank])}
    killed = [h for h in crashed if (exit_ := ranks[h.rank].exit) is not None and exit_.signal]
    broken = any(h.secondary and h.rank not in quiet for h in crashed)
    left = [h for h in processes.values() if h.end is End.CLEAN and h.rank not in quiet]
    left = [h for h in left if broken and not ranks[h.rank].finalized]
    failed = _first_by_host((h for h in crashed if h.rank not in unseen), trace)
    gone = _first_by_host([*killed, *left], trace)
    stopped = _first_by_host((h for h in processes.values() if h.end is End.TORN_DOWN), trace)

    def follows(first: Mapping[str, int], process: ProcessState, at_ns: int) -> bool:
        return 0 < first.get(ranks[process.rank].host or "", 0) < at_ns

    result = dict(processes)
    for process in crashed:
        rank, facts = process.rank, ranks[process.rank]
        if rank in unseen and follows(failed, process, facts.heartbeat_ns):
            result[rank] = replace(process, end=End.TORN_DOWN, secondary=True)
        elif rank in quiet and left_by_itself(facts) and follows(gone, process, process.end_ns):
            result[rank] = replace(process, secondary=True)
    own = [h for h in result.values() if h.failed]
    if all(
        left_by_itself(ranks[h.rank]) and follows(stopped, h, h.end_ns - ANSWERED_NS) for h in own
    ):
        result |= {h.rank: replace(h, end=End.TORN_DOWN, secondary=True) for h in own}
    return result


def _first_by_host(ends: Iterable[ProcessState], trace: Trace) -> dict[str, int]:
    """When the first of these ends came on each host (ns)."""
    first: dict[str, int] = {}
    for process in ends:
        host = trace.ranks[process.rank].host
        if host and process.end_ns:
            first[host] = min(first.get(host, process.end_ns), process.end_ns)
    return first


def had_destroyed_groups(facts: RankFacts) -> bool:
    """Whether a rank that left without a message had destroyed its groups: its part was done.

    Whoever ends it then may give it any status: Ray workers exit with 1 when their driver is done.
    """
    exit_ = facts.exit
    silent = exit_ is not None and exit_.kind == "code" and exit_.text == WITHOUT_A_WORD
    return (silent or is_unseen(facts)) and bool(facts.finalized)


def primary_crashes(
    processes: Mapping[int, ProcessState], waits_on: Mapping[int, set[int]]
) -> list[ProcessState]:
    """Failures that no other rank explains, earliest first.

    ``waits_on``: whom each rank was waiting for. A rank's failure while it waits for a rank that
    ended before is that rank's doing.
    """
    crashed = [h for h in processes.values() if h.end is End.CRASHED]
    own = [h for h in crashed if not h.secondary]
    result = []
    for process in own:
        ended_before = [
            processes[other]
            for other in waits_on.get(process.rank, ())
            if other in processes
            and processes[other].gone
            and processes[other].end is not End.TORN_DOWN
            and (
                not process.end_ns
                or not processes[other].end_ns
                or processes[other].end_ns <= process.end_ns
            )
            and other != process.rank
        ]
        if not ended_before:
            result.append(process)
    return first_to_fail(result or own)  # some may have waited for each other


def first_to_fail(failed: Sequence[ProcessState]) -> list[ProcessState]:
    """Of failures that no other rank explains, the first ones, earliest first.

    Later ones are usually consequences, except those of the same kind at the same moment. A failure
    without a time may have been the first.
    """
    dated = sorted((h for h in failed if h.end_ns), key=lambda h: (h.end_ns, h.rank))
    undated = sorted((h for h in failed if not h.end_ns), key=lambda h: h.rank)
    if not dated:
        return undated
    first, words = dated[0], dated[0].failure.template
    return undated + [
        h
        for h in dated
        if h is first or (h.failure.template == words and h.end_ns - first.end_ns <= _TWIN_NS)
    ]


def same_failure(failed: Sequence[ProcessState]) -> bool:
    """Whether all failed for the same reason: one fault in all of them."""
    return len({h.failure.template for h in failed}) < 2


_OWN_ERRORS = frozenset({"device_error", "oom", "nan", "ddp_unused_parameters", "ddp_marked_twice"})


def own_errors(claims: tuple[Claim, ...]) -> dict[int, Claim]:
    """Per rank its first claim of an error of its own."""
    named: dict[int, Claim] = {}
    for claim in sorted(claims, key=lambda c: c.at_ns or 1 << 62):
        if claim.kind in _OWN_ERRORS:
            for rank in claim.accused or ((claim.reporter,) if claim.reporter is not None else ()):
                named.setdefault(rank, claim)
    return named


def known_by_status(trace: Trace, rank: int) -> bool:
    """Whether a log gives only the status of a rank's end."""
    facts = trace.ranks[rank]
    bare = facts.exception is None and facts.exit is not None and facts.exit.kind == "code"
    return bare and rank in of_text(trace)


def may_have_given_up(trace: Trace) -> frozenset[int]:
    """Ranks that may be the unnamed one that timed out according to the log.

    Programs print what they catch without their rank, and exit with a status.
    """
    if not any(claim.kind == "timeout" and claim.reporter is None for claim in trace.claims):
        return frozenset()
    return frozenset(rank for rank in trace.ranks if known_by_status(trace, rank))
