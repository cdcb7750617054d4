"""What rows do with a line, where that follows from its named groups."""

from __future__ import annotations

from dataclasses import replace

from hangscope.trace import signals
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import LauncherFailure, TaskEnd
from hangscope.trace.job_log.rows.overdue import message_of
from hangscope.trace.job_log.rows.row import Note, Said
from hangscope.trace.model import NO_DETAILS, ClaimDetails, ClaimKind


def claim(
    kind: ClaimKind, details: ClaimDetails = NO_DETAILS, *, certain: bool = False,
    passes: bool = False,
) -> Note:  # fmt: skip
    """A claim of this kind, with what the named groups of the line's expression tell, by the rank
    that the line's prefix or label states.

    It accuses the ranks in ``accused``; ``rank`` is who says so, ``pid`` the process concerned,
    ``joined`` of ``clients`` how many have met. ``clients`` and ``world`` are the world's size.

    ``passes``: other rows may understand the line, too.
    """

    def note(said: Said, attempt: Attempt) -> bool:
        rank, pid, joined = said.number("rank", 7), said.number("pid"), said.number("joined", 7)
        clients = said.number("clients", 7)
        attempt.has_ranks(clients or said.number("world", 7))
        told, words = details, ""
        if rank is not None:
            attempt.of(rank)
        if pid is not None:
            told = replace(told, pid=pid, host=said.line.host or "")
            words = f"{pid} {said.line.host or ''}"
        if joined is not None and clients is not None:
            told = replace(told, joined=joined, clients=clients)
        attempt.claim(
            kind, said.line, accused=said.ranks("accused"),
            reporter=message_of(said.line).rank if rank is None else rank,
            certain=certain, words=words, details=told,
        )  # fmt: skip
        return not passes

    return note


def own_error(kind: ClaimKind, *, certain: bool = True) -> Note:
    """An error of the rank that writes the line, or of the one in ``rank`` or ``other``."""

    def note(said: Said, attempt: Attempt) -> None:
        named = said.number("rank", 7) if said.text("rank") else said.number("other", 7)
        writer = said.line.rank if said.line.rank is not None else named
        attempt.claim(kind, said.line, accused=(writer,), reporter=writer, certain=certain)

    return note


def signal_in(said: Said) -> int | None:
    """The signal in a line: its ``signal`` (number), ``name`` (TERM) or ``how`` (Killed)."""
    told = said.text("signal") or said.text("got")
    if told.isdigit():
        return int(told[:3])
    named = signals.number_of(said.text("name") or told)
    return named or signals.BY_DESCRIPTION.get(said.text("how").strip().lower())


def ended(said: Said, attempt: Attempt) -> None:
    """A process ended with ``code`` or a signal (1 where a line tells neither): the one of the rank
    in ``rank``, with the local rank in ``local``, or in ``pid``. Of a scheduler it is a ``task``,
    which is a rank or a node."""
    line, rank, pid = said.line, said.number("rank", 7), said.number("pid")
    signal, host = signal_in(said), said.text("host")
    code = -signal if signal is not None else int(said.text("code")[:6] or 1)
    if said.text("task"):
        status = said.number("code", 4)
        end = TaskEnd(
            said.number("task", 7) or 0, host or line.host or "", status, signal, line.at_ns
        )
        attempt.ends.of_tasks.append(end)
    elif said.text("local"):
        local = said.number("local", 6) or 0
        failure = LauncherFailure(local, pid, code, line.at_ns, line.machine, line.number)
        attempt.ends.failures.append(failure)
    else:
        known = attempt.processes.of_pid(pid, line.machine) if rank is None else rank
        if known is None:
            attempt.claim("launcher_failure", line, certain=False)
            return
        notes = attempt.of(known)
        if rank is not None:
            notes.runs_as(host, pid)
        notes.ended(code, line.at_ns)


def stopped(said: Said, attempt: Attempt) -> None:
    """The launcher, or the whole job, was told to stop."""
    number = signal_in(said) or signals.SIGTERM
    attempt.ends.step_ended |= "CANCELLED AT" in said.line.text
    attempt.claim("other", said.line, details=ClaimDetails(stopped=number))


def world_size(said: Said, attempt: Attempt) -> bool:
    """The number of ranks in ``world``; the largest that is stated counts."""
    attempt.has_ranks(next((int(g[:7]) for g in said.found.groups() if g), None))
    return False
