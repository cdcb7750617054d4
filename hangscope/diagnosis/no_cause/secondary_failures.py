"""Every recorded failure is an echo of another one: who may have failed first?"""

from __future__ import annotations

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.store_places import key_given_up
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.no_cause.claims import accused_by_exceptions
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.processes.stacks import user_frames, where
from hangscope.diagnosis.wording import playbook
from hangscope.diagnosis.wording.crash_advice import crash
from hangscope.diagnosis.wording.phrases import rank_s


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
    """Ranks failed because of another rank's failure that is not recorded."""
    processes = [context.processes[rank] for rank in failed]
    keys = {key_given_up(process) for process in processes}
    summary = "Communication between ranks failed, and nothing on record says who broke it"
    advice = playbook.by_verdict(Verdict.STUCK_COLLECTIVE)
    if all(process.aborted for process in processes):
        summary = (
            f"{rank_s(failed).capitalize()} aborted, as a watchdog does after waiting too long, "
            "and nothing on record says for whom"
        )
    if all(process.failure.replicas_differ for process in processes):
        summary = "The replicas differ, as every rank reports, and nothing says which is wrong"
        advice = crash(processes[0].end_text, "")
    if all(_has_lost_the_store(context, process) for process in processes):
        summary = "Ranks lost the store, and nothing on record says why"
        advice = playbook.Advice(
            "find out how the process that hosts the store ended, or what keeps it from answering: "
            "rank 0's, or the launcher's on the first node (MASTER_ADDR)",
            "D19",
        )
    if "" not in keys:
        advice = playbook.Advice(
            "look for the rank that had to set that key in the store, and at the wait's timeout",
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
        processes[0].end_text,
        advice.fix,
        advice.playbook,
        evidence=tuple(f"rank {process.rank}: {process.end_text}" for process in processes[:8]),
    )


def _has_lost_the_store(context: Context, process: ProcessState) -> bool:
    """Whether a rank had been in the job and failed because the store did not answer."""
    return process.failure.lost_store and bool(context.trace.ranks[process.rank].initialized)
