"""What others explicitly say about a rank: log statements, exceptions naming who failed."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.processes.embedded_exceptions import failed_ranks, original, own_places
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import user_frames, where
from hangscope.diagnosis.wording import playbook
from hangscope.diagnosis.wording.crash_advice import crash
from hangscope.diagnosis.wording.phrases import rank_s
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
    words = f"{first.type_name.removeprefix('builtins.')}: {first.message}".splitlines()[0]
    how = shortened(words)
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
        unknowns=(f"{rank_s(accused)} left no dump",),
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
        advice = playbook.say("op")
        if verdict is Verdict.RANK_CRASHED:
            advice = crash(naming[0].text, "")
        elif verdict is Verdict.RANK_LOST:
            advice = playbook.by_verdict(verdict)
        elif verdict is Verdict.MISSING_RANK:
            advice = playbook.missing(first=kind == "rendezvous")
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
    said = next((c for c in claims if c.details.get("creating")), None)
    if said is None:
        return None
    size = said.details.get("creating", 0)
    return Finding(
        Verdict.STUCK_COLLECTIVE,
        (),
        (),
        Confidence.LIKELY,
        f"All {size} ranks are creating a communicator of {size} ranks, and none has finished",
        "its ranks have found each other and cannot connect: a network interface, a device or a "
        "shared memory that not all can use",
        "see which interface and transport each rank chose (NCCL_DEBUG=INFO, lines of NET and of "
        "channels); try NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE=1 or NCCL_P2P_DISABLE=1 one at a time",
        "D3, D4",
        evidence=(f"log: {shortened(said.text)}",),
        began_ns=said.at_ns,
    )


def _first_of(claims: list[Claim]) -> list[Claim]:
    """The earliest, plus those at the same moment or at an unknown one."""
    dated = [c.at_ns for c in claims if c.at_ns]
    first = min(dated, default=0)
    return [c for c in claims if not c.at_ns or c.at_ns - first <= _SAME_MOMENT_NS]
