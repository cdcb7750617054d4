"""What a job says it begins that only some of its ranks do, or do for long.

Where the waiting begins right there, that is a clue. It accuses nobody: many jobs write checkpoints
all the time.
"""

from __future__ import annotations

from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.rows.row import Said, row

_NEAR = 40
"""Lines between that and the first line of a timeout, if training went on it prints more."""


def _begins(said: Said, evidence: Evidence) -> bool:
    if not evidence.given_up:
        evidence.phase = said.line, said.at_ns
        evidence.at_end["phase"] = lambda: _tell(evidence)
    return False


def _tell(evidence: Evidence) -> None:
    """Note the newest, if ranks gave up waiting for one another soon below it."""
    timed_out = [o for n in evidence.ranks.values() for o in n.operations if o.timed_out]
    if evidence.phase is None or not timed_out:
        return
    line, at_ns = evidence.phase
    first = min(timed_out, key=lambda o: o.line)
    began_ns = first.at_ns - first.ran_ms * 10**6 if first.at_ns and first.ran_ms else 0
    near = 0 <= first.line - line.number <= _NEAR
    if at_ns and began_ns:
        near = abs(at_ns - began_ns) <= _MOMENT_NS
    if near:
        evidence.claim("other", line, at_ns, certain=False, phase=True)


_MOMENT_NS = 90 * 10**9

# fmt: off
ROWS = (
    row("phase", "remark",
        r"[Ss]aving (?:model |optimizer |current )*(?:checkpoint|state|weights)|"
        r"saving checkpoint at iteration|\*{3,} Running [Ee]valuation|[Rr]unning validation|"
        r"(?:Starting|Begin|Running|running) (?:evaluation|eval\b)|"
        r"Downloading (?:data|shards|model)",
        _begins, "Saving model checkpoint to /ckpt/step-500", "***** Running Evaluation *****",
        "saving checkpoint at iteration    5000 to /ckpt"),
)
# fmt: on
