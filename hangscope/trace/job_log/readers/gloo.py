"""Gloo's messages, monitored barriers and errors of DDP's reducer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import Evidence, GroupId, Operation, rank_ranges
from hangscope.trace.model import ClaimDetails, Signature, State

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FAILED = re.compile(r"\[Rank (\d+)\]: Ranks? ([\d,\s]+?) failed to pass monitoredBarrier in (\d+)")
_REACHED = re.compile(
    r"Rank (\d+) successfully reached monitoredBarrier, but received errors while waiting"
)
_LATE = re.compile(r"Rank (\d+) timed out in monitoredBarrier after (\d+) ms")
_PROCESSED = re.compile(r"Successfully processed ranks: ([\d,\s]+)")
_NOBODY = "No ranks successfully processed in monitoredBarrier"
_GLOO = re.compile(r"gloo/(?:transport|common)|\[Gloo\]|gloo::")
_GLOO_TIMEOUT = re.compile(r"Timed out waiting (\d+)ms for (recv|send) operation to complete")
_GLOO_CLOSED = re.compile(
    r"Connection closed by peer|Connection reset by peer|Socket closed|Read timeout|Write timeout|"
    r"Connect timeout|connectFullMesh failed|Application timeout caused pair closure|Broken pipe"
)
_SIZE = re.compile(
    r"op\.(?:preamble\.length|nread)\s*(?:<=|==)\s*op\.(?:nbytes|preamble\.nbytes)"
    r"(?:\.?\s*(?P<got>\d+) vs (?P<expected>\d+))?|Received data size doesn't match expected size"
)
_MESH = re.compile(
    r"\[Gloo\] Rank (\d+) is connected to (\d+) peer ranks\. "
    r"Expected number of connected peer ranks is : (\d+)"
)
_NO_GRAD = re.compile(r"Parameters?(?: indices)? which did not receive grad for rank (\d+): ?(.*)")
_UNFINISHED = "Expected to have finished reduction in the prior iteration"
_TWICE = "Expected to mark a variable ready only once"
_MODEL = re.compile(
    r"DDP expects same model across all ranks, but Rank (\d+) has (\d+) params, while rank (\d+) "
    r"has inconsistent (\d+) params"
)
_MODELS: GroupId = ("ddp", "DDP's comparison of models")
_MOST_MODELS = 1024
_SHAPES = re.compile(
    r"\[?(\d+)?\]?:? ?params\[(\d+)\] in this process with sizes .* appears not to match"
)
_BARRIER = re.compile(
    r"barrier(?: for .{1,200}?)? in group .{1,200}?: ranks? (?P<ranks>\d[\d,\s\-]*) of \d+ "
    r"did not come within"
)


WORDS = (
    "onitored", "rocessed", "DDP expects", "Expected to", "params[", "did not rec", "barrier",
    "loo", "op.", "Received data size", "Timed out waiting",
)  # fmt: skip


def is_wait_failure(message: str) -> bool:
    """Whether an error is Gloo's way of saying that a wait ended without the others."""
    if _GLOO_TIMEOUT.search(message) or "Application timeout caused pair closure" in message:
        return True
    return bool(_GLOO.search(message) and _GLOO_CLOSED.search(message))


def read(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Record what such a line says. Returns whether it was one."""
    text = line.text
    if "onitored" in text and _monitored(line, at_ns, evidence):
        return True
    if "rocessed" in text and _processed(line, at_ns, evidence):
        return True
    if "DDP expects" in text or "Expected to" in text or "params[" in text or "did not rec" in text:
        return _reducer(line, at_ns, evidence)
    found = _BARRIER.search(text)
    if found:
        evidence.claim("barrier_timeout", line, at_ns, accused=rank_ranges(found.group("ranks")))
        return True
    return _gloo(line, at_ns, evidence)


def _processed(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """The second line of the coordinator's message: which ranks came."""
    found = _PROCESSED.search(line.text)
    if found or _NOBODY in line.text:
        details = _came(line, 0, found.group(1) if found else "")
        _held_up(evidence, line, at_ns, line.rank_or(0), **details)
        return True
    return False


def _came(line: LogLine, own: int, ranks: str) -> ClaimDetails:
    """The ranks that the coordinator has seen, if its message uses global ranks."""
    return {"places": True} if line.is_place(own) else {"processed": _numbers(ranks)}


def _monitored(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    text = line.text
    found = _FAILED.search(text)
    if found:
        own = int(found.group(1))
        _held_up(
            evidence,
            line,
            at_ns,
            line.rank_or(own),
            accused=() if line.is_place(own) else _numbers(found.group(2)),
            places=line.is_place(own),
        )
        return True
    found = _REACHED.search(text)
    if found:
        own = int(found.group(1))
        reporter, places = line.rank_or(own), line.is_place(own)
        _held_up(evidence, line, at_ns, reporter, places=places)
        return True
    found = _LATE.search(text)
    if found:
        own, done = int(found.group(1)), _PROCESSED.search(text)
        details = _came(line, own, done.group(1)) if done else {}
        _held_up(evidence, line, at_ns, line.rank_or(own), **details)
        return True
    return False


def failed_monitored_barrier(text: str) -> tuple[int, dict[int, Signature]] | None:
    """The writer's group rank and its operation, if a message says that its monitored barrier
    failed; None for other messages.
    """
    found = _FAILED.search(text) or _REACHED.search(text) or _LATE.search(text)
    if found is None:
        return None
    own = int(found.group(1)[:9])
    return own, {own: Signature("monitored_barrier", "monitored_barrier")}


def monitored_barrier_wait_ms(text: str) -> int:
    """How long a failed monitored barrier had waited, if the message says so; else 0."""
    found = _FAILED.search(text)
    return int(found.group(3)[:15]) if found is not None else 0


def _held_up(
    evidence: Evidence,
    line: LogLine,
    at_ns: int,
    rank: int,
    accused: tuple[int, ...] = (),
    **details: Unpack[ClaimDetails],
) -> None:
    """A rank says that its monitored barrier did not complete."""
    name = "monitored_barrier"
    evidence.of(rank)
    evidence.claim(name, line, at_ns, accused=accused, reporter=rank, op=name, **details)


def _reducer(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """What DDP's reducer says about its parameters, or about other ranks' models."""
    return (
        _unused(line, at_ns, evidence)
        or _other_model(line, at_ns, evidence)
        or _other_shapes(line, at_ns, evidence)
    )


def _unused(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Parameters took no part in a backward pass, or took part twice."""
    found = _NO_GRAD.search(line.text)
    accused = () if line.rank is None else (line.rank,)
    if found:
        rank = line.rank_or(int(found.group(1)))
        evidence.of(rank)
        evidence.claim(
            "ddp_unused_parameters",
            line,
            at_ns,
            accused=(rank,),
            reporter=rank,
        )
    elif _UNFINISHED in line.text:
        evidence.claim("ddp_unused_parameters", line, at_ns, accused=accused)
    elif _TWICE in line.text:
        evidence.claim("ddp_marked_twice", line, at_ns, accused=accused)
    else:
        return False
    return True


def _other_model(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Another rank has a different number of parameters."""
    found = _MODEL.search(line.text)
    if not found:
        return False
    own, count, other, its_count = (int(x[:18]) for x in found.groups())
    # No parameters, or an absurd number: the other rank did not take part in this collective.
    absent = its_count == 0 or its_count > 10**9
    if not absent and other < _MOST_MODELS and not line.is_place(own):
        # It names the first rank that differs, so the ranks before that one agree with it.
        _model(own, count, line, at_ns, evidence)
        _model(other, its_count, line, at_ns, evidence)
        for rank in range(other):
            _model(rank, count, line, at_ns, evidence)
    evidence.claim(
        "ddp_model_mismatch",
        line,
        at_ns,
        reporter=line.rank_or(own),
        accused=(other,) if absent and not line.is_place(own) else (),
        certain=False,
    )
    return True


def _other_shapes(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """A parameter has a different shape than on rank 0."""
    found = _SHAPES.search(line.text)
    if not found:
        return False
    said = int(found.group(1)) if found.group(1) else None
    owner = said if line.rank is None else line.rank
    accused = () if owner is None else (owner,)
    evidence.claim(
        "ddp_model_mismatch", line, at_ns, reporter=owner, accused=accused, certain=False
    )
    return True


def _model(rank: int, size: int, line: LogLine, at_ns: int, evidence: Evidence) -> None:
    """One rank's part in the comparison of models, which every rank repeats."""
    notes = evidence.of(rank)
    if any(o.group == _MODELS for o in notes.operations):
        return
    notes.operations.append(
        Operation(
            seq=1,
            signature=Signature("all_gather", "parameters of the model", input_sizes=((size,),)),
            group=_MODELS,
            state=State.SCHEDULED,
            at_ns=at_ns,
            line=line.number,
            text=line.excerpt,
        )
    )


def _gloo(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    text = line.text
    found = _MESH.search(text)
    if found:
        rank, have, want = (int(x[:9]) for x in found.groups())
        if evidence.world_size is None:
            evidence.world_size = want + 1
        if have < want:
            evidence.claim("network_error", line, at_ns, reporter=rank, certain=False)
        return True
    if _SIZE.search(text):
        evidence.claim("size_mismatch", line, at_ns, certain=False)
        return True
    if _GLOO_TIMEOUT.search(text):
        evidence.claim("timeout", line, at_ns, certain=False)
        return True
    if _GLOO.search(text) and _GLOO_CLOSED.search(text):
        evidence.claim("network_error", line, at_ns, certain=False)
        return True
    return False


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in re.findall(r"\d{1,7}", text))
