"""Gloo's messages and monitored barriers."""

from __future__ import annotations

import re
from typing import Final

from hangscope.trace.job_log.evidence.attempt import Attempt, rank_ranges
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.job_log.rows.statements import claim
from hangscope.trace.model import ClaimDetails, Signature

_BARRIER: Final = "monitored_barrier"
_GLOO = re.compile(r"gloo/(?:transport|common)|\[Gloo\]|gloo::")
_FAILED = re.compile(
    r"\[Rank (?P<own>\d+)\]: Ranks? (?P<late>[\d,\s]+?) failed to pass monitoredBarrier in "
    r"(?P<ms>\d+)"
)
_REACHED = re.compile(
    r"Rank (?P<own>\d+) successfully reached monitoredBarrier, but received errors while waiting"
)
_LATE = re.compile(r"Rank (?P<own>\d+) timed out in monitoredBarrier after (\d+) ms")
_PROCESSED = re.compile(
    r"Successfully processed ranks: (?P<came>[\d,\s]+)|"
    r"No ranks successfully processed in monitoredBarrier"
)
TIMEOUT = re.compile(r"Timed out waiting (\d+)ms for (recv|send) operation to complete")
_PAIR_CLOSED = "Application timeout caused pair closure"
_CLOSED = re.compile(
    r"Connection closed by peer|Connection reset by peer|Socket closed|Read timeout|Write timeout|"
    rf"Connect timeout|connectFullMesh failed|{_PAIR_CLOSED}|Broken pipe"
)


def is_wait_failure(message: str) -> bool:
    """Whether an error is Gloo's way of saying that a wait ended without the others."""
    if TIMEOUT.search(message) or _PAIR_CLOSED in message:
        return True
    return bool(_GLOO.search(message) and _CLOSED.search(message))


def failed_monitored_barrier(text: str) -> tuple[int, dict[int, Signature]] | None:
    """The writer's group rank and its operation, if a message says that its monitored barrier
    failed; None for other messages.
    """
    found = _FAILED.search(text) or _REACHED.search(text) or _LATE.search(text)
    if found is None:
        return None
    own = int(found["own"][:9])
    return own, {own: Signature(_BARRIER, _BARRIER)}


def monitored_barrier_wait_ms(text: str) -> int:
    """How long a failed monitored barrier had waited, if the message says so; else 0."""
    found = _FAILED.search(text)
    return int(found["ms"][:15]) if found is not None else 0


def _held_up(said: Said, attempt: Attempt) -> None:
    """A rank says that its monitored barrier did not complete, and perhaps who is late or came."""
    line, text, own = said.line, said.line.text, said.number("own", 7) or 0
    rank, inner, came = line.rank_or(own), line.is_place(own), _PROCESSED.search(text)
    if inner and (came or not _LATE.search(text)):
        details = ClaimDetails(places=True)
    else:
        details = ClaimDetails(processed=rank_ranges(came["came"] or "") if came else None)
    attempt.of(rank)
    accused = () if inner else said.ranks("late")
    attempt.claim(_BARRIER, line, accused=accused, reporter=rank, op=_BARRIER, details=details)


def _connected(said: Said, attempt: Attempt) -> None:
    """How many of its peers a rank of the default group is connected to."""
    rank, have, want = (said.number(n) or 0 for n in ("rank", "have", "want"))
    attempt.has_ranks(want + 1)
    if have < want:
        attempt.claim("network_error", said.line, reporter=rank, certain=False)


def _closed(said: Said, attempt: Attempt) -> bool:
    if not _GLOO.search(said.line.text):
        return False
    attempt.claim("network_error", said.line, certain=False)
    return True


# fmt: off
ROWS = (
    row("monitored-barrier", "missing ranks",
        (_FAILED.pattern, _REACHED.pattern, _LATE.pattern, _PROCESSED.pattern), _held_up,
        "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 30000 ms",
        "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 5000 ms",
        "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0. Please check rank 0 logs for faulty rank.",
        "Rank 0 timed out in monitoredBarrier after 30000 ms.",
        "Successfully processed ranks: 1, 3",
        "No ranks successfully processed in monitoredBarrier."),
    row("barrier-of-hangscope", "missing ranks",
        r"barrier(?: for .{1,200}?)? in group .{1,200}?: ranks? (?P<accused>\d[\d,\s\-]*) of \d+ "
        r"did not come within", claim("barrier_timeout", certain=True),
        "hangscope.BarrierTimeout: barrier for epoch end in group default: ranks 2, 5 of 8 did not "
        "come within 60 s"),
    row("gloo-mesh", "lost peer",
        r"\[Gloo\] Rank (?P<rank>\d+) is connected to (?P<have>\d+) peer ranks\. "
        r"Expected number of connected peer ranks is : (?P<want>\d+)", _connected,
        "[Gloo] Rank 1 is connected to 2 peer ranks. Expected number of connected peer ranks is : "
        "3", since="torch 2.7"),
    row("gloo-size", "mismatch",
        r"op\.(?:preamble\.length|nread)\s*(?:<=|==)\s*op\.(?:nbytes|preamble\.nbytes)|"
        r"Received data size doesn't match expected size", claim("size_mismatch"),
        "terminate called: [enforce fail at /gloo/transport/tcp/pair.cc:446] op.preamble.length <= "
        "op.nbytes. 4096 vs 1024"),
    row("gloo-closed", "lost peer", _CLOSED.pattern, _closed,
        "[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:54321"),
)
# fmt: on
