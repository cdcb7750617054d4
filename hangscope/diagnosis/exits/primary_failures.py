"""Which ranks ended by their own doing, judged by comparing how all ranks ended.

A launcher ends all ranks once one has failed, and peers fail because of its failure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hangscope.diagnosis.exits.lost_peers import aborted_first, lost_peer_ns
from hangscope.diagnosis.exits.shared_stop_signals import (
    ANSWERED_NS,
    with_isolated_stops,
    without_echoes_of_stop,
)
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
from hangscope.diagnosis.records.coverage import known_only_from_journal
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
    processes = with_isolated_stops(processes, trace)
    processes = _answering(_after_the_stop(processes, trace), trace)
    return _outlived_a_failure(_victims_of_launcher(processes, trace), trace)


def _victims_of_launcher(
    processes: dict[int, ProcessState], trace: Trace
) -> dict[int, ProcessState]:
    """Reclassify aborts that a log explains. A watchdog abort after a timeout is a victim's end,
    and Gloo aborts the rank that receives a message of an unexpected size, whichever side is wrong.
    Without a log, an abort in an exchange may be of that kind if a member of it left nothing."""
    unranked = bool(trace.missing_ranks or known_only_from_journal(trace))
    timed_out = {c.reporter for c in trace.claims if c.kind == "timeout" and c.reporter is not None}
    got_other_size = {c.reporter for c in trace.claims if c.kind == "size_mismatch"}
    alone, lost = aborted_alone(trace), lost_peer_ns(trace)
    result = dict(processes)
    for rank, process in processes.items():
        exit_ = trace.ranks[rank].exit
        if process.end is not End.CRASHED or exit_ is None or not exit_.aborted:
            continue
        unnamed = None in got_other_size and trace.ranks[rank].exception is None
        # A log alone does not show why a process aborted itself: usually its watchdog timed out.
        silent = trace.only_logs and trace.ranks[rank].exception is None and rank != alone
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
    if not trace.only_logs:  # for logs, each message is compared word by word
        processes = {
            r: replace(h, secondary=False) if r in messages else h for r, h in processes.items()
        }
    usual = [size for size, count in Counter(sizes.values()).items() if count * 2 > len(sizes)]
    if len(sizes) < 3 or not usual:
        return processes
    right = {rank for rank in messages if sizes[rank] == usual[0]}
    return {r: replace(h, secondary=True) if r in right else h for r, h in processes.items()}


def _after_the_stop(processes: dict[int, ProcessState], trace: Trace) -> dict[int, ProcessState]:
    """Ranks that failed after others of their host had been stopped, with nobody failing earlier.

    They were told to stop too and reacted in their own way: a handler saves and exits with a
    status, or raises. It was not their failure that stopped the others.
    """
    stopped: dict[str, int] = {}
    for rank, process in processes.items():
        name = trace.ranks[rank].host
        if process.end is End.TORN_DOWN and name and process.end_ns:
            stopped[name] = min(stopped.get(name, process.end_ns), process.end_ns)
    failed = {r: h for r, h in processes.items() if h.failed}
    late = {
        rank
        for rank, process in failed.items()
        if 0 < stopped.get(trace.ranks[rank].host or "", 0) < process.end_ns - ANSWERED_NS
        and left_by_itself(trace.ranks[rank])
    }
    if late != failed.keys():
        return processes
    return {
        r: replace(h, end=End.TORN_DOWN, secondary=True) if r in late else h
        for r, h in processes.items()
    }


def _answering(processes: dict[int, ProcessState], trace: Trace) -> dict[int, ProcessState]:
    """Ranks that left only an exit status after a signal had killed another rank of their host, or
    after a rank had left without destroying its groups and a third one reports what that breaks.

    What they raised is lost with their record: most likely that the connection was closed.
    """
    gone: dict[str, int] = {}
    quiet = known_only_from_journal(trace)
    broken = any(
        h.end is End.CRASHED and h.secondary for r, h in processes.items() if r not in quiet
    )
    for rank, process in processes.items():
        facts = trace.ranks[rank]
        exit_, name = facts.exit, facts.host
        killed = process.end is End.CRASHED and exit_ is not None and exit_.signal
        left = broken and process.end is End.CLEAN and not facts.finalized and rank not in quiet
        if (killed or left) and name and process.end_ns:
            gone[name] = min(gone.get(name, process.end_ns), process.end_ns)
    result = dict(processes)
    for rank in quiet if gone else ():
        process, facts = processes[rank], trace.ranks[rank]
        after = 0 < gone.get(facts.host or "", 0) < process.end_ns
        if after and process.end is End.CRASHED and left_by_itself(facts):
            result[rank] = replace(process, secondary=True)
    return result


def left_by_itself(facts: RankFacts) -> bool:
    exit_ = facts.exit
    return exit_ is not None and exit_.kind in ("code", "exception") and exit_.signal is None


def had_destroyed_groups(facts: RankFacts) -> bool:
    """Whether a rank that left without a message had destroyed its groups: its part was done.

    Whoever ends it then may give it any status: Ray workers exit with 1 when their driver is done.
    """
    exit_ = facts.exit
    silent = exit_ is not None and exit_.kind == "code" and exit_.text == WITHOUT_A_WORD
    return (silent or is_unseen(facts)) and bool(facts.finalized)


def _outlived_a_failure(
    processes: dict[int, ProcessState], trace: Trace
) -> dict[int, ProcessState]:
    """Ranks with an unobserved end that were alive after another rank had failed.

    They are not the cause: the launcher ended them, or that failure did. Clocks of different hosts
    are not compared.
    """
    failed: dict[str, int] = {}
    for rank, process in processes.items():
        name = trace.ranks[rank].host
        if (
            process.end is End.CRASHED
            and not is_unseen(trace.ranks[rank])
            and name
            and process.end_ns
        ):
            failed[name] = min(failed.get(name, process.end_ns), process.end_ns)
    result = dict(processes)
    for rank, process in processes.items():
        facts = trace.ranks[rank]
        first_ns = failed.get(facts.host or "")
        unseen = process.end is End.CRASHED and is_unseen(facts)
        if unseen and first_ns is not None and facts.heartbeat_ns > first_ns:
            result[rank] = replace(process, end=End.TORN_DOWN, secondary=True)
    return result


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
    return trace.only_logs and bare


def may_have_given_up(trace: Trace) -> frozenset[int]:
    """Ranks that may be the unnamed one that timed out according to the log.

    Programs print what they catch without their rank, and exit with a status.
    """
    if not any(claim.kind == "timeout" and claim.reporter is None for claim in trace.claims):
        return frozenset()
    return frozenset(rank for rank in trace.ranks if known_by_status(trace, rank))
