"""Kernels that gave up waiting for a peer: torch's symmetric memory, DeepEP, userbuffers.

Such a kernel prints which peer it waits for and ends itself with a trap. The device errors that its
process then reports are not failures of the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.job_log.rows.statements import claim


@dataclass(slots=True)
class KernelWaits:
    """Which ranks' kernels gave up waiting for which, as they print it."""

    on: dict[int, set[int]] = field(default_factory=dict)
    are_places: bool = False
    """Whether the numbers are ranks inside a smaller group."""
    trapped: bool = False
    """A kernel ended itself because it had waited too long."""


def _waits(said: Said, attempt: Attempt) -> None:
    """Note which rank waits for which; who is missing is known at the end of the log."""
    own, peer = said.number("own", 7) or 0, said.number("peer", 7) or 0
    waits = attempt.part(KernelWaits)
    waits.are_places |= said.line.is_place(own) or said.line.local_rank not in (None, own)
    waits.on.setdefault(own, set()).add(peer)
    waits.trapped = True
    attempt.at_end.setdefault(_waits, lambda: _missing(said, attempt))


def _missing(said: Said, attempt: Attempt) -> None:
    """Accuse ranks that others waited for and that waited for nobody."""
    waits = attempt.part(KernelWaits)
    late = {peer for peers in waits.on.values() for peer in peers} - set(waits.on)
    if not late or waits.are_places or len(late) > len(waits.on):
        attempt.claim("timeout", said.line, certain=False)
        return
    for rank in waits.on:
        attempt.of(rank)
    accused, line = tuple(sorted(late)), said.line._replace(rank=None)
    attempt.claim("missing_ranks", line, accused=accused, certain=len(late) == 1)


def _deep_ep(said: Said, attempt: Attempt) -> bool:
    attempt.part(KernelWaits).trapped = True
    attempt.claim("timeout", said.line, reporter=said.line.rank, certain=False)
    return False


# fmt: off
ROWS = (
    row("symmetric-memory", "missing ranks",
        r"SymmetricMemory::\w{1,40}:? rank (?P<own>\d{1,7}) failed to (?:send signal to|"
        r"receive signal from) rank (?P<peer>\d{1,7})\b", _waits,
        "CUDASymmetricMemory::barrier: rank 1 failed to receive signal from rank 2 in channel 0 "
        "after 10000 microseconds"),
    row("deepep", "timeout",
        r"DeepEP timeout check failed|DeepEP [\w :\-()]{1,80} timeout|timeout \(dispatch CPU\)",
        _deep_ep, "DeepEP timeout check failed: rank = 3, thread = 0, value = 1024)",
        "RuntimeError: DeepEP error: CPU recv timeout"),
    row("userbuffers", "timeout", r"\[\d{1,7}\]: ?expecting -?\d+ got -?\d+",
        claim("timeout", passes=True), "UB_PTX_TIMEOUT [3]:expecting 7 got 6"),
)
# fmt: on
