"""What others say about a rank: log statements, exceptions naming who failed, echoes."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.store_places import key_given_up
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.no_cause.inconclusive import nobody
from hangscope.diagnosis.processes.embedded_exceptions import failed_ranks, original, own_places
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import user_frames, where
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.diagnosis.wording.playbook import say
from hangscope.diagnosis.wording.rank_advice import crash, missing
from hangscope.trace.model import Claim
from hangscope.trace.units import SECOND_NS

_CLAIM_VERDICTS = {
    "monitored_barrier": Verdict.MISSING_RANK,
    "unreachable": Verdict.RANK_LOST,
    "missing_ranks": Verdict.MISSING_RANK,
    "desync_report": Verdict.MISSING_RANK,
    "barrier_timeout": Verdict.MISSING_RANK,
    "fingerprint_mismatch": Verdict.COLLECTIVE_MISMATCH,
    "size_mismatch": Verdict.SHAPE_MISMATCH,
    "ddp_model_mismatch": Verdict.SHAPE_MISMATCH,
    "shared_device": Verdict.RANK_CRASHED,
    "oom": Verdict.RANK_CRASHED,
    "device_error": Verdict.RANK_CRASHED,
    "launcher_failure": Verdict.RANK_CRASHED,
    "ddp_unused_parameters": Verdict.RANK_CRASHED,
    "ddp_marked_twice": Verdict.RANK_CRASHED,
    "rendezvous": Verdict.MISSING_RANK,
    "nan": Verdict.RANK_CRASHED,
}
_CLAIM_ORDER = list(_CLAIM_VERDICTS)
_SAME_MOMENT_NS = SECOND_NS
_KEY = "look for the rank that had to set that key in the store, and at the wait's timeout"
_FIRST = (
    "look for a rank that ended otherwise: the launcher's table, the logs of other nodes, the "
    "kernel's log (memory, Xid); if there is none, the network failed"
)


def accused_by_exceptions(context: Context) -> Finding | None:
    """Ranks that left nothing and failed according to the exceptions of the others."""
    errors = [f.exception for f in context.trace.ranks.values() if f.exception is not None]
    said = [(error, failed_ranks(error.message) or ()) for error in errors]
    member = {place: rank for rank, place in own_places(context.trace).items()}
    named = {member.get(place, place): place for _, failed in said for place in failed}
    accused = sorted(named.keys() - context.processes.keys())
    if not accused:
        return None
    error = next(e for e, failed in said if named[accused[0]] in failed)
    first = original(error, named[accused[0]]) if len(accused) == 1 else error
    how = shortened(first.line)
    frames = user_frames(first.stack) if first is not error else ()
    advice = crash(how, where(frames[0]) if frames else "")
    return Finding(
        Verdict.RANK_CRASHED,
        tuple(accused),
        tuple(sorted(context.processes)),
        Confidence.LIKELY,
        f"{rank_s(accused).capitalize()} failed: {how}",
        "the others raise because it failed, and say so",
        advice.fix,
        advice.playbook,
        evidence=tuple(f"rank {r}: {h.end_text}" for r, h in [*context.processes.items()][:8]),
        unknowns=(f"{rank_s(accused)} left no record",),
    )


def from_claims(claims: tuple[Claim, ...]) -> Finding | None:
    """What a log states outright, most informative kind first."""
    for kind in _CLAIM_ORDER:
        naming = [c for c in claims if c.kind == kind and c.accused]
        if not naming:
            continue
        verdict = _CLAIM_VERDICTS[kind]
        if verdict is Verdict.RANK_CRASHED:
            naming = _first_of(naming)
        accused = tuple(sorted({r for c in naming for r in c.accused}))
        # Either one fault in all of them, or one of them and its echoes: a log does not show which.
        among_several = verdict is Verdict.RANK_CRASHED and len(accused) > 1
        certain = all(c.certain for c in naming) and not among_several
        advice = say("op")
        if verdict is Verdict.RANK_CRASHED:
            advice = crash(naming[0].text, "")
        elif verdict is Verdict.RANK_LOST:
            advice = say(verdict)
        elif verdict is Verdict.MISSING_RANK:
            advice = missing(first=kind == "rendezvous")
        if any(c.text.startswith("RAS: ") for c in naming):
            again = "run ncclras once more, since one snapshot may have been taken in between"
            advice = replace(advice, fix=f"{again}; {advice.fix}")
        words = naming[0].text.strip().splitlines()
        return Finding(
            verdict,
            tuple(sorted(accused)),
            (),
            Confidence.LIKELY if certain else Confidence.AMBIGUOUS,
            f"The log names {rank_s(accused)}: {shortened(words[0], 160) if words else kind}",
            "",
            advice.fix,
            advice.playbook,
            seq=naming[0].seq,
            op=naming[0].op,
            evidence=tuple(f"log: {shortened(c.text)}" for c in naming[:8]),
            began_ns=naming[0].at_ns,
        )
    return _creating(claims)


def _creating(claims: tuple[Claim, ...]) -> Finding | None:
    """A communicator that all of its ranks began to create and none has."""
    said = next((c for c in claims if c.details.creating), None)
    if said is None:
        return None
    size = said.details.creating
    return nobody(
        f"All {size} ranks are creating a communicator of {size} ranks, and none has finished",
        "its ranks have found each other and cannot connect: a network interface, a device or a "
        "shared memory that not all can use",
        "see which interface and transport each rank chose (NCCL_DEBUG=INFO, lines of NET and of "
        "channels); try NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE=1 or NCCL_P2P_DISABLE=1 one at a time",
        verdict=Verdict.STUCK_COLLECTIVE,
        evidence=(f"log: {shortened(said.text)}",),
    )


def _first_of(claims: list[Claim]) -> list[Claim]:
    """The earliest, plus those at the same moment or at an unknown one."""
    dated = [c.at_ns for c in claims if c.at_ns]
    first = min(dated, default=0)
    return [c for c in claims if not c.at_ns or c.at_ns - first <= _SAME_MOMENT_NS]


def secondary_failures(context: Context) -> Finding:
    """All ranks failed because of another rank, and no rank is left to be that one."""
    failed = tuple(sorted(r for r, h in context.processes.items() if h.end is End.CRASHED))
    return (
        _failed_alone(context, failed)
        or _left_with_the_store(context, failed)
        or accused_by_exceptions(context)
        or _failed_of_the_unknown(context, failed)
    )


def _failed_alone(context: Context, failed: tuple[int, ...]) -> Finding | None:
    """The crash of the only rank that failed, whatever its message, if all others lived until
    then."""
    rest = [process.end for rank, process in context.processes.items() if rank not in failed]
    if len(failed) != 1 or not rest or any(end is not End.TORN_DOWN for end in rest):
        return None
    (rank,) = failed
    process = context.processes[rank]
    if process.aborted or process.failure.replicas_differ:
        return None
    frames = user_frames(process.stack)
    advice = crash(process.end_text, where(frames[0]) if frames else "")
    return Finding(
        Verdict.RANK_CRASHED,
        failed,
        tuple(sorted(set(context.processes) - set(failed))),
        Confidence.LIKELY,
        f"Rank {rank} crashed: {process.end_text}",
        f"{rank_s(failed)} ended; the others were stopped after it",
        advice.fix,
        advice.playbook,
        evidence=(f"rank {rank}: {process.end_text}",),
        began_ns=process.end_ns,
    )


def _left_with_the_store(context: Context, failed: tuple[int, ...]) -> Finding | None:
    """The clean exit of rank 0, after which all others lost the store: rank 0 usually serves it.

    If a launcher serves it instead, ranks do not lose it when one of them exits.
    """
    process = context.processes.get(0)
    others = [context.processes[rank] for rank in failed]
    if process is None or process.end is not End.CLEAN or {0, *failed} != context.processes.keys():
        return None
    first_ns = min((other.end_ns for other in others), default=0)
    if not all(_has_lost_the_store(context, h) for h in others) or not process.end_ns < first_ns:
        return None
    return Finding(
        Verdict.RANK_EXITED,
        (0,),
        failed,
        Confidence.LIKELY,
        f"Rank 0 has ended ({process.end_text}), and {rank_s(failed)} lost the store that it hosts",
        "the store is gone when the process that hosts it exits",
        "keep rank 0 alive until all others are done: a barrier, or destroy_process_group on every "
        "rank, before it exits",
        "D20, D9",
        evidence=tuple(f"rank {other.rank}: {other.end_text}" for other in others[:8]),
        unknowns=("who hosts the store is not on record: rank 0, unless the launcher does",),
        began_ns=process.end_ns,
    )


def _failed_of_the_unknown(context: Context, failed: tuple[int, ...]) -> Finding:
    """Ranks failed because of another rank's failure that is not recorded.

    Of the rows, the first one that is true of all of them says more.
    """
    processes = [context.processes[rank] for rank in failed]
    keys = {key_given_up(process) for process in processes}
    who, what = rank_s(failed).capitalize(), processes[0].end_text
    rows = (
        (
            len(keys) == 1 and "" not in keys,
            f"{who} waited in vain for {min(keys)}, which nobody set",
            _KEY,
        ),
        (
            all(_has_lost_the_store(context, h) for h in processes),
            "Ranks lost the store, and nothing on record says why",
            "find out how the process that hosts the store ended, or what keeps it from answering: "
            "rank 0's, or the launcher's on the first node (MASTER_ADDR)",
        ),
        (
            all(h.failure.nobody_at_address for h in processes),
            "Ranks found nobody at the addresses that the store gave them to meet at",
            "if the job was restarted, the store may still hold the addresses of the attempt "
            "before: give each attempt a store, or keys, of its own; otherwise see whether a rank "
            "ended or timed out just before",
        ),
        (
            all(h.failure.replicas_differ for h in processes),
            "The replicas differ, as every rank reports, and nothing says which is wrong",
            crash(what, "").fix,
        ),
        (
            all(h.aborted for h in processes)
            and any(c.kind == "device_error" and not c.accused for c in context.trace.claims),
            f"A device failed and {rank_s(failed)} aborted; nothing on record says whose device",
            "",
        ),
        (
            all(h.aborted for h in processes),
            f"{who} aborted, as a watchdog does after waiting too long, and nothing on record says "
            "for whom",
            "",
        ),
        (
            True,
            "Communication between ranks failed, and nothing on record says who broke it",
            _KEY if "" not in keys else _FIRST,
        ),
    )
    summary, fix = next((summary, fix) for applies, summary, fix in rows if applies)
    evidence = tuple(f"rank {process.rank}: {process.end_text}" for process in processes[:8])
    return nobody(summary, what, fix, victims=failed, evidence=evidence)


def _has_lost_the_store(context: Context, process: ProcessState) -> bool:
    """Whether a rank had been in the job and failed because the store did not answer."""
    return process.failure.lost_store and bool(context.trace.ranks[process.rank].initialized)
