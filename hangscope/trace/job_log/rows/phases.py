"""What a job says it begins that only some of its ranks do, or do for long.

Where the waiting begins right there, that is a clue. It accuses nobody: many jobs write checkpoints
all the time.
"""

from __future__ import annotations

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.model import ClaimDetails

_NEAR = 40
"""Lines between that and the first line of a timeout, if training went on it prints more."""


def _begins(said: Said, attempt: Attempt) -> bool:
    if not attempt.given_up:
        attempt.at_end[_begins] = lambda: _tell(said, attempt)
    return False


def _tell(said: Said, attempt: Attempt) -> None:
    """Note the newest, if ranks gave up waiting for one another soon below it."""
    line = said.line
    first = min(attempt.overdue, key=lambda o: o.line, default=None)
    if first is None:
        return
    began_ns = first.at_ns - first.ran_ms * 10**6 if first.at_ns and first.ran_ms else 0
    near = 0 <= first.line - line.number <= _NEAR
    if line.at_ns and began_ns:
        near = abs(line.at_ns - began_ns) <= _MOMENT_NS
    if near:
        attempt.claim("other", line, certain=False, details=ClaimDetails(phase=True))


_MOMENT_NS = 90 * 10**9

# fmt: off
ROWS = (
    row("phase", "remark",
        r"[Ss]aving (?:model |optimizer |current )*(?:checkpoint|state|weights)|"
        r"\*{3,} Running [Ee]valuation|[Rr]unning validation|"
        r"(?:Starting|Begin|Running|running) (?:evaluation|eval\b)|"
        r"Downloading (?:data|shards|model)",
        _begins, "Saving model checkpoint to /ckpt/step-500", "***** Running Evaluation *****",
        "saving checkpoint at iteration    5000 to /ckpt"),
)
# fmt: on
