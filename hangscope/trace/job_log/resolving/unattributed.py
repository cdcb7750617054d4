"""Turns exceptions of unknown processes into claims.

They accuse nobody. But if some ranks wait for others that are silent, these exceptions are the next
thing to look at; and if a log contains nothing else, they are all it says.
"""

from __future__ import annotations

import re

from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.evidence.notes import LoggedException
from hangscope.trace.job_log.rows.gloo import is_wait_failure
from hangscope.trace.message_template import mask_numbers
from hangscope.trace.model import Claim, ClaimDetails

_SIGINT = 2
_MOST = 4
_NO_FAILURES = frozenset({"KeyboardInterrupt", "SystemExit", "GeneratorExit"})
_NOT_OWN = re.compile(
    r"[/\\]lib[/\\]python|site-packages|dist-packages|^<|[/\\]hangscope[/\\]recording[/\\]"
)


def claim_unattributed(evidence: Evidence) -> None:
    """Add claims for unattributed exceptions that are not failed waits; if the log says nothing
    else, for the last one of any kind.
    """
    raised = [*evidence.raised.anonymous, *evidence.raised.unranked]
    own = [t for t in raised if not is_wait_failure(t.message) and _name(t) not in _NO_FAILURES]
    alone = not any(notes.tells() for notes in evidence.ranks.values())
    if alone and not evidence.claims:
        own = raised[-1:]
    shown = {(t.type_name, mask_numbers(t.message.partition("\n")[0])): t for t in reversed(own)}
    for trouble in [*shown.values()][: -_MOST - 1 : -1]:
        after_stop = 0 < evidence.stopped_line < trouble.line
        evidence.claims.append((_words(trouble, after_stop=after_stop), None))


def dead_thread_claim(trouble: LoggedException) -> Claim:
    """A claim that some rank's thread died: its process lives on, and others may wait for it."""
    text = f"thread {trouble.thread_name} ended with {trouble.type_name}: {trouble.message}"
    text += _where(trouble, " at {}")
    return Claim("other", text=text[:400], at_ns=trouble.at_ns, details={"dead_thread": True})


def _words(trouble: LoggedException, *, after_stop: bool) -> Claim:
    said = trouble.message.strip().partition("\n")[0][:300]
    text = f"{_name(trouble)}: {said}".rstrip(": ") + _where(trouble, " ({})")
    interrupted = _name(trouble) == "KeyboardInterrupt"
    details = ClaimDetails(stopped=_SIGINT) if interrupted else ClaimDetails(unattributed=True)
    if after_stop:
        details["after_stop"] = True
    return Claim("other", text=text, at_ns=trouble.at_ns, certain=False, details=details)


def _name(trouble: LoggedException) -> str:
    return trouble.type_name.rpartition(".")[2]


def _where(trouble: LoggedException, form: str) -> str:
    """The innermost frame in user code, if there is one."""
    at = next((f for f in trouble.frames if not _NOT_OWN.search(f.filename)), None)
    if at is None:
        return ""
    file = re.split(r"[/\\]", at.filename)[-1]
    return form.format(f"{file}:{at.line} in {at.name}")
