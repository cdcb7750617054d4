"""What to say when nothing in the graph is a cause: healthy, quiescent or inconclusive."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hangscope.diagnosis.causes.remote_calls import unanswered
from hangscope.diagnosis.context import SECOND_NS, Context
from hangscope.diagnosis.ends.killed_together import UNSEEN
from hangscope.diagnosis.ends.primary_failures import had_left
from hangscope.diagnosis.ends.status_only import may_have_given_up
from hangscope.diagnosis.graph.stores import key_given_up
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.processes.failures import DIFFER
from hangscope.diagnosis.processes.host import End, Host, is_at_work
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import innermost, user_frames, where
from hangscope.diagnosis.quiet.accusations import from_claims, told_of
from hangscope.diagnosis.quiet.last_words import by_last_words, places_of_waits
from hangscope.diagnosis.quiet.lingering import left_standing, lingering
from hangscope.diagnosis.quiet.signs import DEAD_THREAD, how_to_meet, signs
from hangscope.diagnosis.records.evidence import end_is_unseen
from hangscope.diagnosis.waiting.moments import Moment
from hangscope.diagnosis.words import playbook
from hangscope.diagnosis.words.by_stacks import (
    by_stacks,
    places_of_stacks,
    places_of_threads,
    where_to_look,
)
from hangscope.diagnosis.words.crashes import crash
from hangscope.diagnosis.words.phrases import rank_s
from hangscope.trace.model import Claim, Flag

_OWN_REPORT = "own_report"
_REPORTED = (
    "what that report rests on is in the run directory and not in this log",
    "give analyze the run directory that the report in the log names, not its log alone",
)
"""Why HangScope's own words in a log are no verdict, and what to do."""
"""What it notes of verdicts that HangScope itself has printed into the log."""
_LOST_STORE = re.compile(r"(?:\w+\.)*DistNetworkError\b")
"""Torch raises this of its store alone."""
_UNSEEN_ENDS = "no rank waits for another on record; what its device has finished is not known"
_DISTRESS = frozenset(
    {
        "timeout",
        "dump_signal",
        "network_error",
        "rendezvous",
        "launcher_failure",
        "size_mismatch",
    }
)


@dataclass(frozen=True, slots=True)
class Quiet:
    """The finding, if any, and remarks."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def without_cause(context: Context, killed: str | None, moment: Moment | None) -> Quiet:
    """Judge a trace in which nobody is found to wait for anybody."""
    trace, hosts = context.trace, context.hosts
    moving = moment is not None
    gave_up = may_have_given_up(trace)
    named = from_claims(tuple(c for c in trace.claims if gave_up.isdisjoint(c.accused)))
    named = named or by_stacks(context) or by_last_words(context)
    if named is not None:
        return Quiet((named,))
    remote = unanswered(context)
    if remote is not None:
        return Quiet((remote,))
    left = lingering(context)
    if left is not None:
        return Quiet((left,))
    if gave_up:
        return Quiet((_inconclusive(context),))
    finished = all(facts.finalized for facts in trace.ranks.values())
    unclear = killed == UNSEEN or (killed is not None and bool(trace.missing_ranks))
    if unclear and not moving and not finished:
        return Quiet((_ended_unseen(context),))
    if killed is not None and not moving and not finished:
        stood_s = _stood_before_the_end(context)
        if stood_s >= trace.timeout_s:
            return Quiet((_quiescent(context, stood_s),))
    if moment is not None and len(trace.missing_ranks) >= len(trace.ranks):
        return Quiet((_inconclusive(context),))  # what half of the ranks did tells little
    if moment is not None and not moment.moved:
        return Quiet((_inconclusive(context),))
    stopped = next((c for c in trace.claims if c.details.get("stopped")), None)
    if killed is not None and trace.only_logs and not len(trace.records):
        return Quiet((_told_to_stop(context, stopped.text if stopped else killed),))
    if killed is not None or moving:
        return Quiet()
    ends = [h.end for h in hosts.values() if not (h.gone and had_left(trace.ranks[h.rank]))]
    over = bool(ends) or (bool(hosts) and all(host.gone for host in hosts.values()))
    if over and all(e is End.CLEAN for e in ends) and not trace.missing_ranks:
        return Quiet()
    if any(c.kind in _DISTRESS for c in trace.claims):
        return Quiet((_inconclusive(context),))
    if any(e is End.CRASHED for e in ends):
        return Quiet((_secondary_only(context),))
    if stopped is not None and any(c.details.get(DEAD_THREAD) for c in trace.claims):
        return Quiet((_inconclusive(context),))
    if stopped is not None and not len(trace.records):
        return Quiet((_told_to_stop(context, stopped.text),))
    if trace.live:
        return _live(context)
    stood = _stopped_after_a_standstill(context)
    if stood is not None:
        return Quiet((stood,))
    nothing_issued = trace.only_logs and not len(trace.records)
    if any(e is not End.UNKNOWN for e in ends) and not nothing_issued:
        return Quiet()
    if not len(trace.records) and not len(trace.members):
        return Quiet((_inconclusive(context),))
    return _dumped(context)


def _stood_before_the_end(context: Context) -> float:
    """For how long (s) no rank had issued or finished anything when the first of them was ended."""
    ends = [h.end_ns for h in context.hosts.values() if h.end_ns]
    if not ends or not context.newest_ns:
        return 0.0
    return (min(ends) - context.newest_ns) / SECOND_NS


def _stopped_after_a_standstill(context: Context) -> Finding | None:
    """Ranks with something left to do were ended after `Trace.timeout_s` of silence.

    Others may have left in order before: what the former waited for is not on record then.
    """
    stopped = {
        rank: host.end_ns
        for rank, host in sorted(context.hosts.items())
        if host.end is End.TORN_DOWN and host.end_ns and not context.trace.ranks[rank].finalized
    }
    if not stopped or not context.newest_ns:
        return None
    stood_s = (min(stopped.values()) - context.newest_ns) / SECOND_NS
    if stood_s < context.trace.timeout_s:
        return None
    who = f"{rank_s([*stopped])} {'were' if len(stopped) > 1 else 'was'}"
    return replace(
        _inconclusive(context),
        summary=f"Nothing was issued for {stood_s:.0f} s before {who} ended, and nothing tells why",
    )


def _live(context: Context) -> Quiet:
    trace = context.trace
    newest = context.newest_ns
    if not newest or not trace.observed_ns:
        return Quiet()
    silent_s = (trace.observed_ns - newest) / SECOND_NS
    moving = any(map(is_at_work, trace.ranks.values()))
    # A single process owes nobody an operation, unless it shares a group with another job's.
    alone = trace.world_size == 1 and not any(group.outsiders for group in trace.groups)
    if silent_s < trace.timeout_s or moving or alone or trace.looks < 2:
        return Quiet()
    finishing = any(h.end is End.CLEAN for h in context.hosts.values()) or any(
        f.finalized and f.leaving is not None for f in trace.ranks.values()
    )
    if finishing:
        left = left_standing(context)
        return Quiet((left,) if left is not None else ())
    return Quiet((_quiescent(context, silent_s),))


def _dumped(context: Context) -> Quiet:
    """Dumps of processes nobody looked at: all finished, and yet somebody dumped."""
    if (context.trace.records["flags"] & int(Flag.UNOBSERVED)).any():
        return Quiet((_inconclusive(context),))  # whether the last operations finished is not known
    front, numbers = context.front, context.trace.records["collective_seq"]
    if (front.pending > 0).any() or (front.unfinished & ~front.p2p & (numbers <= 0)).any():
        return Quiet((_inconclusive(context),))  # somebody waits, and nothing tells for whom
    return Quiet((_quiescent(context, None),))


def _quiescent(context: Context, silent_s: float | None) -> Finding:
    last = None
    for rank in sorted(context.trace.ranks):
        last = last or context.last_operation(rank)
    # A dump of active entries alone has counters, and no name for what they count.
    where = f" ({f'{last.op} ' if last.op else ''}#{last.seq})" if last is not None else ""
    since = f" for {silent_s:.0f} s" if silent_s is not None else ""
    advice = playbook.by_verdict(Verdict.QUIESCENT)
    seen = all(_end_is_seen(context, rank) for rank in context.trace.ranks)
    did = "finished" if seen else "issued"
    return Finding(
        Verdict.QUIESCENT,
        (),
        (),
        Confidence.LIKELY,
        f"{_went_to(context, did, where)} and none has issued another{since}",
        "no rank waits in a collective" if seen else _UNSEEN_ENDS,
        where_to_look(context) or advice.fix,
        advice.playbook,
        evidence=places_of_threads(context),
    )


def _went_to(context: Context, did: str, where: str) -> str:
    """What the ranks did last: the same, as far as their records tell."""
    lasts = {context.last_operation(rank) for rank in context.trace.ranks} - {None}
    ends = {(last.op, last.seq) for last in lasts if last is not None}
    if len(ends) < 2:
        return f"Every rank {did} the same last collective{where}"
    return f"No rank is seen to wait for another in what it {did} last"


def _end_is_seen(context: Context, rank: int) -> bool:
    """Whether it is known how a rank's newest operation stands."""
    row, front = context.last_row(rank), context.front
    if row < 0:
        return True
    if not end_is_unseen(context.trace, row):
        return True
    record = context.trace.records[row]
    pairs = context.pairs_of_rank[rank]
    here = pairs[front.group[pairs] == record["group"]]
    # A backend's own counter tells of its collectives.
    return not front.p2p[row] and bool((front.completed[here] >= record["collective_seq"]).all())


def _inconclusive(context: Context) -> Finding:
    advice = playbook.by_verdict(Verdict.INCONCLUSIVE)
    fix, missing = advice.fix, context.trace.missing_ranks
    standing = places_of_stacks(context)
    if standing:
        fix = (
            "compare where the ranks stand: one that is not in communication may be the one that "
            "is waited for; stacks of more ranks, dumps or the job's log tell more"
        )
    fix = how_to_meet(context.trace.claims) or fix
    summary, why = signs(context), "the records do not show who is waited for"
    said = _own_words(context.trace.claims)
    if said and context.trace.only_logs:
        summary = f"{summary}; HangScope had said before: {said[0]}"
        why, fix = _REPORTED
    return Finding(
        Verdict.INCONCLUSIVE,
        (),
        (),
        Confidence.LIKELY,
        summary,
        why,
        fix,
        advice.playbook,
        unknowns=(f"{rank_s(missing)} left no dump",) if missing else (),
        evidence=places_of_waits(context)
        + standing
        + tuple(f"HangScope said in this log: {text}" for text in said)
        + tuple(
            f"log: {shortened(c.text)}"
            for c in context.trace.claims[:8]
            if c.text and c.kind != _OWN_REPORT
        ),
    )


def _told_to_stop(context: Context, words: str) -> Finding:
    """Somebody ended the job, and no rank said before whether it waited: a hang looks no other."""
    said = _own_words(context.trace.claims)
    if said:
        before = f"HangScope had said before: {said[0]}"
        why, fix = _REPORTED
    else:
        before = "nothing in this log tells whether it hung before or for whom"
        why = "ranks that wait say nothing until a timeout of theirs expires, and none had"
        fix = (
            "if its last steps came long before, it hung: run it with HANGSCOPE=1, or take the "
            "stacks of all ranks (py-spy dump) before it is stopped"
        )
    return Finding(
        Verdict.INCONCLUSIVE,
        (),
        tuple(sorted(context.hosts)),
        Confidence.LIKELY,
        f"The job was told to stop from outside, and {before}",
        why,
        fix,
        playbook.by_verdict(Verdict.INCONCLUSIVE).playbook,
        evidence=(f"log: {shortened(words)}",),
    )


def _own_words(claims: tuple[Claim, ...]) -> tuple[str, ...]:
    """What HangScope's own reports in a log say: no evidence, but worth repeating."""
    return tuple(c.text for c in claims if c.kind == _OWN_REPORT)[:4]


def _ended_unseen(context: Context) -> Finding:
    """Every process is gone and left no word: killed from outside, or by one of them first."""
    advice = playbook.by_verdict(Verdict.INCONCLUSIVE)
    missing = context.trace.missing_ranks
    stood = {r: where(innermost(h.stack)) for r, h in context.hosts.items() if h.stack}
    if missing:
        summary = (
            f"The ranks on record were all ended from outside, and {rank_s(missing)} left nothing"
        )
        if len(context.hosts) == 1:
            only = next(iter(context.hosts))
            summary = f"Only rank {only} left anything, and nothing on record says how it ended"
        why = "whether they were ended because of what left nothing is not on record"
    else:
        summary = "Every rank ended at about the same time, and nothing on record says how"
        why = "no exit status, signal or exception was seen of any of them"
    return Finding(
        Verdict.INCONCLUSIVE,
        (),
        tuple(sorted(context.hosts)),
        Confidence.LIKELY,
        summary,
        why,
        advice.fix,
        advice.playbook,
        evidence=tuple(f"rank {r}: last seen at {at}" for r, at in sorted(stood.items())[:8]),
        unknowns=("the launcher's log and the kernel's (dmesg) may tell which one ended first",),
    )


def _secondary_only(context: Context) -> Finding:
    """Everybody failed because of somebody else, and nobody is left to be that somebody."""
    failed = tuple(sorted(r for r, h in context.hosts.items() if h.end is End.CRASHED))
    return (
        _failed_alone(context, failed)
        or _left_with_the_store(context, failed)
        or told_of(context)
        or _failed_of_the_unknown(context, failed)
    )


def _failed_alone(context: Context, failed: tuple[int, ...]) -> Finding | None:
    """The crash of the one that failed, whatever its words, where all others lived until then."""
    rest = [host.end for rank, host in context.hosts.items() if rank not in failed]
    if len(failed) != 1 or not rest or any(end is not End.TORN_DOWN for end in rest):
        return None
    (rank,) = failed
    host = context.hosts[rank]
    if host.aborted or DIFFER.search(host.end_text):
        return None
    frames = user_frames(host.stack)
    advice = crash(host.end_text, where(frames[0]) if frames else "")
    return Finding(
        Verdict.RANK_CRASHED,
        failed,
        tuple(sorted(set(context.hosts) - set(failed))),
        Confidence.LIKELY,
        f"Rank {rank} crashed: {host.end_text}",
        f"{rank_s(failed)} ended; the others were stopped after it",
        advice.fix,
        advice.playbook,
        evidence=(f"rank {rank}: {host.end_text}",),
        began_ns=host.end_ns,
    )


def _left_with_the_store(context: Context, failed: tuple[int, ...]) -> Finding | None:
    """The end of rank 0, in order, after which all others lost the store: as a rule it serves it.

    Where a launcher serves it instead, ranks do not lose it as one of them leaves.
    """
    host = context.hosts.get(0)
    others = [context.hosts[rank] for rank in failed]
    if host is None or host.end is not End.CLEAN or {0, *failed} != context.hosts.keys():
        return None
    first_ns = min((other.end_ns for other in others), default=0)
    if not all(_has_lost_the_store(context, h) for h in others) or not host.end_ns < first_ns:
        return None
    return Finding(
        Verdict.RANK_EXITED,
        (0,),
        failed,
        Confidence.LIKELY,
        f"Rank 0 has ended ({host.end_text}), and {rank_s(failed)} lost the store that it hosts",
        "what ranks tell each other in the store is gone with the process that hosts it",
        "let rank 0 stay until all others are done: a barrier, or destroy_process_group on every "
        "rank, before it leaves",
        "D20, D9",
        evidence=tuple(f"rank {other.rank}: {other.end_text}" for other in others[:8]),
        unknowns=("who hosts the store is not on record: rank 0, unless the launcher does",),
        began_ns=host.end_ns,
    )


def _failed_of_the_unknown(context: Context, failed: tuple[int, ...]) -> Finding:
    """Ranks failed of somebody else's failure, and that is not on record."""
    hosts = [context.hosts[rank] for rank in failed]
    keys = {key_given_up(host) for host in hosts}
    summary = "Ranks failed in communication, and nothing on record says who broke it"
    advice = playbook.by_verdict(Verdict.STUCK_COLLECTIVE)
    if all(host.aborted for host in hosts):
        summary = (
            f"{rank_s(failed).capitalize()} aborted, as a watchdog does that waited too long, and "
            "nothing on record says for whom"
        )
    if all(DIFFER.search(host.end_text) for host in hosts):
        summary = "The replicas differ, as all of them raise, and nothing says which one is wrong"
        advice = crash(hosts[0].end_text, "")
    if all(_has_lost_the_store(context, host) for host in hosts):
        summary = "Ranks lost the store, and nothing on record says why"
        advice = playbook.Advice(
            "look how the process that hosts the store ended, or what keeps it from answering: "
            "rank 0's, or the launcher's on the first node (MASTER_ADDR)",
            "D19",
        )
    if "" not in keys:
        advice = playbook.Advice(
            "look for who was to set what is waited for in the store, and how long it is awaited",
            "D19",
        )
        if len(keys) == 1:
            (key,) = keys
            summary = f"{rank_s(failed).capitalize()} waited in vain for {key}, which nobody set"
    return Finding(
        Verdict.INCONCLUSIVE,
        (),
        failed,
        Confidence.LIKELY,
        summary,
        hosts[0].end_text,
        advice.fix,
        advice.playbook,
        evidence=tuple(f"rank {host.rank}: {host.end_text}" for host in hosts[:8]),
    )


def _has_lost_the_store(context: Context, host: Host) -> bool:
    """Whether a rank had been in the job, and failed as nobody answered for the store."""
    return bool(_LOST_STORE.match(host.end_text) and context.trace.ranks[host.rank].initialized)
