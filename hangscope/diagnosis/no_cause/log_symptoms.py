"""What a log that names nobody does show, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.no_cause.final_tracebacks import places_of_waits
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.wording.phrases import capital, rank_s
from hangscope.diagnosis.wording.stack_summary import places_of_stacks, where_unranked_are
from hangscope.trace.job_log.hangscope_output import OWN_ALL_CLEAR
from hangscope.trace.model import Claim

"""A job log reader's note of a thread that died of an uncaught exception."""
_SIGNS = (
    ("oom", "A process ran out of memory"),
    ("device_error", "A device failed"),
    ("size_mismatch", "Ranks exchanged messages of different sizes"),
    ("missing_ranks", "Members of a group are not equally far"),
    ("unreachable", "A process does not answer"),
    ("rendezvous", "Ranks did not all meet"),
    ("launcher_failure", "A process ended"),
    ("network_error", "A connection between ranks failed"),
    ("timeout", "A collective timed out"),
    ("ddp_unused_parameters", "Parameters got no gradient"),
    ("dump_signal", "A rank announced a collective timeout"),
)
"""Kinds of statements that may name nobody, most informative first."""
_Detail = Literal["watchdog_failed", "gave_up", "store_gone", "watchdog_stuck", "blocked"]
_DETAILS: tuple[tuple[_Detail, str], ...] = (
    ("watchdog_failed", "A watchdog failed itself{where}, {nobody}"),
    ("gave_up", "A collective failed or timed out{where}, {nobody}"),
    (
        "store_gone",
        "The process that serves the store (rank 0 or its launcher) has ended: its own log says "
        "why",
    ),
    ("watchdog_stuck", "A watchdog got stuck itself{where}, {nobody}"),
    (
        "blocked",
        "The kernel waits for storage or a device that does not answer, {nobody}",
    ),
)
"""Details noted with other statements."""
NO_MORE = "There are signs of a hang, but the evidence names no rank"
"""Used if there is nothing to say."""
_NOBODY = "and the evidence names no rank as the cause"
_HCCL = "HCCL: member "
"""How a statement begins that tells who waits for whom by their places in a communicator."""
_SILENCE = "There was no sign of progress for too long"


def signs(context: Context) -> str:
    """The most informative thing that a log without names shows."""
    claims = context.trace.claims
    return (
        _of_a_kind(context)
        or _of_a_failure(claims)
        or _of_a_detail(claims)
        or _of_last_dumped(context)
        or (NO_MORE if claims else "Nothing in the evidence shows whether or why the job hangs")
    )


def _of_a_kind(context: Context) -> str:
    """What statements of a known kind show."""
    for kind, words in _SIGNS:
        claims = [c for c in context.trace.claims if c.kind == kind and not c.accused]
        if claims:
            told = next((c.text for c in claims if c.text.startswith(_HCCL)), "")
            if told:
                who = told.removeprefix("HCCL: ").partition(", which")[0]
                return f"{capital(who)}, {_NOBODY}"
            silent = kind == "timeout" and all(c.details.silence for c in claims)
            said = f"{_SILENCE if silent else words}{_reporters(context, kind, claims)}"
            calls = [c.text for c in context.trace.claims if c.details.stands]
            return f"{said}; {calls[0]}" if silent and calls else f"{said}, {_NOBODY}"
    return ""


def _of_a_failure(claims: Sequence[Claim]) -> str:
    """The failure of a thread or process whose rank is unknown."""
    dead = next((c.text for c in claims if c.details.dead_thread), "")
    if dead:
        words = shortened(capital(dead))
        return f"{words}; the log does not say of which rank, or who waits for it"
    alone = next((c.text for c in claims if c.details.unattributed), "")
    if alone:
        words = shortened(alone)
        return f"{words} was raised; the log does not say by which rank, or how the others fared"
    return ""


def _of_a_detail(claims: Sequence[Claim]) -> str:
    """Details noted with other statements."""
    for detail, words in _DETAILS:
        found = [c for c in claims if getattr(c.details, detail)]
        ranks = sorted({c.reporter for c in found if c.reporter is not None})
        if found:
            where = f" on {rank_s(ranks)}" if ranks else ""
            return words.format(nobody=_NOBODY, where=where)
    return ""


def _of_last_dumped(context: Context) -> str:
    """What was issued, waited in or said last."""
    claims = context.trace.claims
    last = next((c.text for c in claims if c.details.announced_last), "")
    if last:
        return f"The log announces operations but no waits; the last were {last}"
    calls = [c.text for c in claims if c.details.stands]
    if calls:  # a lock says less than what took it
        call = min(calls, key=lambda text: "pthread" in text)
        python = where_unranked_are(context)
        return f"{python}; {call}" if python else capital(call)
    waited = places_of_waits(context)
    if waited:
        return f"{capital(waited[0])}, {_NOBODY}"
    clear = next((c.text for c in reversed(claims) if c.kind == OWN_ALL_CLEAR), "")
    if clear:
        return f"HangScope had said of this job that it hung, and then: {clear}"
    standing = () if claims else places_of_stacks(context)
    return where_unranked_are(context) or (f"{capital(standing[0])}, {_NOBODY}" if standing else "")


def rendezvous_advice(claims: Iterable[Claim]) -> str:
    """Advice if ranks waiting for each other report how many had arrived; otherwise empty."""
    timeouts = [c for c in claims if c.kind == "rendezvous"]
    if any(_too_many(timeouts)):
        return (
            "end what is left of an earlier launch, and give every launch its own MASTER_PORT or "
            "file; the launcher and the script must agree on WORLD_SIZE"
        )
    if _came(timeouts):
        return (
            "look for a process that was not started, or whose MASTER_ADDR, MASTER_PORT or "
            "WORLD_SIZE differs from the others'"
        )
    return ""


def _reporters(context: Context, kind: str, claims: list[Claim]) -> str:
    """Who said so, or more of what was said."""
    if kind in ("missing_ranks", "unreachable"):
        return f": {shortened(claims[0].text)}"
    by = tuple(sorted({c.reporter for c in claims if c.reporter is not None}))
    whose = f" (reported by {rank_s(by)})" if by else ""
    if kind == "rendezvous":
        return _came(claims) or whose
    aborted = _aborted(context) if kind == "size_mismatch" else ()
    if not aborted:
        return whose
    # Gloo aborts the rank with too little room, whichever side is wrong.
    they, have = ("it", "has") if len(aborted) == 1 else ("they", "have")
    return (
        f": {rank_s(aborted)} aborted on receiving more than {they} had room for, so {they} or a "
        f"sender {have} issued a different operation or size than the others"
    )


def _too_many(meetings: Iterable[Claim]) -> Iterator[tuple[int, int]]:
    """How many ranks came to a rendezvous, and how many they had been told to expect."""
    for details in (claim.details for claim in meetings):
        came, world = details.joined, details.world_size
        if came > world > 0:
            yield came, world


def _came(meetings: list[Claim]) -> str:
    """Why a rendezvous failed, if those who wait there say so."""
    for came, world in _too_many(meetings):
        return f": {came} processes came to a rendezvous of {world}"
    for details in (claim.details for claim in meetings):
        came, due = details.joined, details.clients
        if 0 < came < due:
            return f": the store that rank 0 serves waited for {due} clients and {came} had come"
        world = details.world_size
        if 0 < came < world:
            return f": {came} of {world} ranks had come to the rendezvous"
        if details.twice is not None:
            return f": two processes said that they are rank {details.twice}"
        if details.sizes is not None:
            first, other = details.sizes
            return f": some ranks count {first} members of a communicator and others {other}"
    return ""


def _aborted(context: Context) -> tuple[int, ...]:
    """Ranks that ended by SIGABRT of their own."""
    ends = {r: f.exit for r, f in context.trace.ranks.items() if f.exit is not None}
    return tuple(sorted(r for r, e in ends.items() if e.aborted))
