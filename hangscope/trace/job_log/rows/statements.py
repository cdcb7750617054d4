"""What rows do with a line, where that follows from its named groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangscope.trace import signals
from hangscope.trace.job_log.evidence.attempt import Attempt, rank_ranges
from hangscope.trace.job_log.evidence.notes import LauncherFailure, TaskEnd
from hangscope.trace.job_log.rows.row import Note, Said
from hangscope.trace.model import MAX_RANK, ClaimDetails, ClaimKind

if TYPE_CHECKING:
    from typing_extensions import Unpack


def claim(
    kind: ClaimKind, *, certain: bool = False, passes: bool = False, **details: Unpack[ClaimDetails]
) -> Note:
    """A claim of this kind, with what the named groups of the line's expression tell.

    It accuses the ranks in ``accused``; ``rank`` is who says so, ``pid`` the process concerned,
    ``joined`` of ``clients`` how many have met. ``clients`` and ``world`` are the world's size.

    ``passes``: other rows may understand the line, too.
    """

    def note(said: Said, attempt: Attempt) -> bool:
        rank, pid, joined = said.number("rank", 7), said.number("pid"), said.number("joined", 7)
        clients = said.number("clients", 7)
        attempt.world_size = attempt.world_size or clients or said.number("world", 7)
        told, words = details.copy(), ""
        if rank is not None:
            attempt.of(rank)
        if pid is not None:
            told["pid"], told["host"] = pid, said.line.host or ""
            words = f"{pid} {said.line.host or ''}"
        if joined is not None and clients is not None:
            told["joined"], told["clients"] = joined, clients
        attempt.claim(
            kind, said.line, said.at_ns, accused=rank_ranges(said.text("accused")),
            reporter=rank, certain=certain, words=words, **told,
        )  # fmt: skip
        return not passes

    return note


def own_error(kind: ClaimKind, *, certain: bool = True) -> Note:
    """An error of the rank that writes the line, or of the one in ``rank`` or ``other``."""

    def note(said: Said, attempt: Attempt) -> None:
        named = said.number("rank", 7) if said.text("rank") else said.number("other", 7)
        writer = said.line.rank if said.line.rank is not None else named
        accused = () if writer is None else (writer,)
        attempt.claim(kind, said.line, said.at_ns, accused=accused, certain=certain)

    return note


def of_process(kind: ClaimKind, said: Said, pid: int, attempt: Attempt) -> None:
    """A claim about a process whose rank another file may state."""
    host = said.line.host or ""
    words = f"{pid} {host}"
    attempt.claim(
        kind, said.line, said.at_ns, certain=False, words=words, pid=pid, host=host
    )  # fmt: skip


def signal_in(said: Said) -> int | None:
    """The signal in a line: its ``signal`` (number), ``name`` (TERM) or ``how`` (Killed)."""
    told = said.text("signal") or said.text("got")
    if told.isdigit():
        return int(told[:3])
    named = signals.number_of(said.text("name") or told)
    return named or signals.BY_DESCRIPTION.get(said.text("how").strip().lower())


def _code_in(said: Said) -> int:
    """An exit status, negative for a signal; 1 where a line tells none."""
    signal, code = signal_in(said), said.text("code")
    return -signal if signal is not None else int(code[:6] or 1)


def rank_ended(said: Said, attempt: Attempt) -> None:
    """The process of the rank in ``rank`` ended with ``code`` or a signal."""
    notes = attempt.of(said.number("rank", 7) or 0)
    notes.pid = notes.pid or said.number("pid")
    notes.host = notes.host or said.text("host") or None
    notes.ended(_code_in(said), said.at_ns)


def local_ended(said: Said, attempt: Attempt) -> None:
    """The process with the local rank in ``local`` ended."""
    local, pid = said.number("local", 6) or 0, said.number("pid")
    code, line = _code_in(said), said.line
    failure = LauncherFailure(local, pid, code, said.at_ns, line.machine, line.number)
    attempt.ends.failures.append(failure)


def task_ended(said: Said, attempt: Attempt) -> None:
    """The scheduler's task in ``task`` ended; a task is a rank or a node."""
    code = said.number("code", 4)
    host = said.text("host") or said.line.host or ""
    end = TaskEnd(said.number("task", 7) or 0, host, code, signal_in(said), said.at_ns)
    attempt.ends.of_tasks.append(end)


def pid_ended(said: Said, attempt: Attempt) -> None:
    """The process in ``pid`` ended."""
    pid = said.number("pid") or 0
    rank = attempt.processes.of_pid(pid, said.line.machine)
    if rank is not None:
        attempt.of(rank).ended(_code_in(said), said.at_ns)
    elif said.text("local"):
        local_ended(said, attempt)
    else:
        attempt.claim("launcher_failure", said.line, said.at_ns, certain=False)


def stopped(said: Said, attempt: Attempt) -> None:
    """The launcher, or the whole job, was told to stop."""
    number = signal_in(said) or signals.SIGTERM
    attempt.ends.step_ended |= "CANCELLED AT" in said.line.text
    attempt.claim("other", said.line, said.at_ns, stopped=number)


def world_size(said: Said, attempt: Attempt) -> bool:
    """The number of ranks in ``world``; the largest that is stated counts."""
    stated = next((int(g[:7]) for g in said.found.groups() if g), 0)
    if 0 < stated <= MAX_RANK + 1:
        attempt.world_size = max(attempt.world_size or 0, stated)
    return False
