"""How a rank ended, according to everything that a log says about it."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.trace import signals
from hangscope.trace.job_log.evidence.notes import LoggedException, RankNotes
from hangscope.trace.job_log.resolving.exceptions import in_communication
from hangscope.trace.job_log.rows.gloo import is_wait_failure
from hangscope.trace.model import CAUSED_BY, Claim, ExceptionFacts, ExitFacts

_OWN_SIGNALS = (*signals.FAULTS, signals.SIGKILL)
"""Signals with causes of their own; a launcher first sends others."""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """What became of a rank."""

    exit: ExitFacts | None
    exception: ExceptionFacts | None
    fatal: LoggedException | None
    """The exception as it appears in the log."""
    survived: ExceptionFacts | None
    """One that it has printed and handled."""


def end_of(notes: RankNotes) -> RankEnd:
    """How the process of a rank ended, as far as the log shows it."""
    fatal = _fatal(notes)
    exception = _facts(fatal, notes) if fatal is not None else None
    printed = notes.printed if notes.printed is not fatal else None
    survived = _facts(printed, notes) if printed is not None else None
    return RankEnd(_exit(notes, exception), exception, fatal, survived)


def _facts(trouble: LoggedException, notes: RankNotes) -> ExceptionFacts:
    return ExceptionFacts(
        type_name=trouble.type_name,
        message=trouble.message + (CAUSED_BY + trouble.cause if trouble.cause else ""),
        stack=tuple(trouble.frames),
        at_ns=trouble.at_ns or notes.exit_ns,
        thread_name=trouble.thread_name,
        is_main_thread=trouble.thread_name == "MainThread",
        may_be_handled=not trouble.uncaught and notes.exit_code is None,
    )


def _exit(notes: RankNotes, exception: ExceptionFacts | None) -> ExitFacts | None:
    """The exit of the process; None if nothing shows that it has ended."""
    code, signal, at_ns = notes.exit_code, notes.exit_signal, notes.exit_ns
    # Who has said that it gave up waiting lived until then: tearing down is what it died of.
    died_of_that = signal in signals.FAULTS and bool(notes.overdue)
    stopped = notes.by_launcher or signal == signals.SIGTERM or died_of_that
    if notes.oom_killed:
        kind, signal, stopped = "oom", signal or signals.SIGKILL, False
    elif exception is not None and exception.is_main_thread:
        kind, at_ns, stopped = "exception", exception.at_ns, False
    elif signal is not None:
        kind = "signal"
    elif code is not None:
        kind = "code" if code else "clean"
    elif notes.found_dead:
        kind, stopped = "unknown", False
    elif stopped:
        kind, signal = "signal", signals.SIGTERM
    else:
        return None
    return ExitFacts(kind, code, signal, at_ns, stopped, notes.exit_text)


def _fatal(notes: RankNotes) -> LoggedException | None:
    """The exception that ended the rank: the last uncaught one.

    A traceback counts as uncaught if torch's hook printed it, or if the launcher saw the process
    exit with a status of its own; one in the middle of a log may have been handled.
    """
    exceptions = [t for t in notes.exceptions if not _is_aftermath(t, notes)]
    uncaught = [t for t in exceptions if t.uncaught]
    if not uncaught and (notes.exit_code not in (None, 0) and notes.exit_signal is None):
        # Progress after a traceback may have stood in a buffer while the process ended.
        told = exceptions or ([notes.printed] if notes.printed is not None else [])
        uncaught = [t for t in told if t.thread_name == "MainThread"]
    gave_up = notes.operations or notes.by_launcher
    if not uncaught and not gave_up and notes.exit_signal is None:
        uncaught = exceptions[-1:]
    main = [t for t in uncaught if t.thread_name == "MainThread"]
    return (main or uncaught)[-1] if uncaught else None


def _is_aftermath(trouble: LoggedException, notes: RankNotes) -> bool:
    """Whether a rank raised something of its own only after it had said that it gave up waiting.

    What it raised while it handled something else is older than its message.
    """
    first = min((o.line for o in notes.overdue), default=0)
    if not 0 < first < trouble.line or trouble.chained:
        return False
    return not (is_wait_failure(trouble.message) or in_communication(trouble))


def unexplained_failure(end: RankEnd, notes: RankNotes) -> Claim | None:
    """A failure that only the launcher saw and that no timeout explains."""
    exit_ = end.exit
    if exit_ is None or exit_.by_launcher or end.exception is not None:
        return None
    if exit_.kind == "oom":
        what = "killed for memory"
    elif exit_.signal in _OWN_SIGNALS:
        what = f"signal {exit_.signal}"
    elif exit_.signal is None and exit_.code and not (notes.operations or notes.echo):
        what = f"exit status {exit_.code}"
    else:
        return None
    return Claim(
        kind="launcher_failure",
        accused=(notes.rank,),
        reporter=notes.rank,
        text=f"rank {notes.rank} ended: {what} {notes.exit_text}".strip()[:300],
        at_ns=exit_.at_ns,
        certain=False,
    )
