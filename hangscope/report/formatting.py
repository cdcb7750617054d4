"""Formats tensors, operations, paths and verdicts for all kinds of reports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from hangscope.diagnosis.duration_text import duration
from hangscope.diagnosis.model import (
    ENDED,
    Confidence,
    Diagnosis,
    Finding,
    RankReport,
    Side,
    Verdict,
)
from hangscope.report.escape import plain
from hangscope.trace.dtypes import readable_dtype
from hangscope.trace.model import Frame

HEADLINES = {
    Verdict.HEALTHY: "HEALTHY",
    Verdict.QUIESCENT: "QUIESCENT",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE",
    Verdict.RANK_CRASHED: "CRASH",
    Verdict.RANK_EXITED: "EARLY EXIT",
    Verdict.RANK_LOST: "LOST RANK",
    Verdict.COLLECTIVE_MISMATCH: "MISMATCH",
    Verdict.SHAPE_MISMATCH: "MISMATCH",
    Verdict.DTYPE_MISMATCH: "MISMATCH",
    Verdict.ARGUMENT_MISMATCH: "MISMATCH",
    Verdict.DEADLOCK_CYCLE: "DEADLOCK",
}
"""The word on a report's badge; all other verdicts are a HANG."""


def headline(verdict: Verdict) -> str:
    """The word on the badge at the top of a report."""
    return HEADLINES.get(verdict, "HANG")


def is_problem(verdict: Verdict) -> bool:
    """Whether the verdict means that something is wrong."""
    return verdict is not Verdict.HEALTHY


def dtype(name: str) -> str:
    """A dtype as people write it: ``Float`` becomes ``float32``."""
    return plain(readable_dtype(name), 40)


def tensors(
    sizes: Sequence[Sequence[int]] | None, dtypes: Sequence[str] | None, limit: int = 3
) -> str:
    """``float32[4096]``, ``int64[2×3] + 4 more``; empty if nothing is known."""
    if sizes is None:
        return " ".join(dict.fromkeys(dtype(d) for d in dtypes or ()))
    if not sizes:
        return "no tensors"
    written = []
    for i, size in enumerate(sizes):
        kind = dtypes[min(i, len(dtypes) - 1)] if dtypes else ""
        written.append(f"{dtype(kind) if kind else ''}[{'×'.join(map(str, size)) or 'scalar'}]")
    if len(set(written)) == 1 and len(written) > 1:
        return f"{len(written)} × {written[0]}"
    rest = f" + {len(written) - limit} more" if len(written) > limit else ""
    return " ".join(written[:limit]) + rest


def operation(op: str | None, seq: int | None) -> str:
    """``all_reduce #118``."""
    name = plain(op, 60) if op else "an operation"
    return f"{name} #{seq}" if seq is not None and seq >= 0 else name


def last_operation(side: Side) -> str:
    """``all_reduce #117, 12 s ago``: the last operation of a side that is not waiting, if any."""
    if not side.last_op:
        return ""
    ago = f", {duration(side.last_age_s)} ago" if side.last_age_s is not None else ""
    return f"{operation(side.last_op, side.last_seq)}{ago}"


class SideWords(NamedTuple):
    """What a side did, what it passed, and what it had done last; empty where that is not known."""

    did: str
    given: str
    last: str


def side_words(side: Side, finding: Finding, group: str = "") -> SideWords:
    """A side in words; ``group``: the group it waits in, if that is to be told."""
    if side.op is None:
        did = plain(side.activity or "nothing recorded there", 200)
        return SideWords(did, "", last_operation(side))
    of = f" of {plain(group, 60)}" if group else ""
    return SideWords(operation(side.op, finding.seq_of(side)) + of, arguments(side), "")


def arguments(side: Side) -> str:
    """What a side passed: tensors, reduce op, root or peer."""
    parts = []
    if side.input_sizes is not None or side.dtypes:
        inputs = tensors(side.input_sizes, side.dtypes)
        outputs = tensors(side.output_sizes, side.dtypes)
        if outputs in ("", inputs) or side.output_sizes == ():
            parts.append(inputs)
        else:
            parts.append(outputs if side.input_sizes == () else f"{inputs} → {outputs}")
    if side.reduce_op:
        parts.append(plain(side.reduce_op, 30).lower())
    if side.root is not None and side.root >= 0:
        parts.append(f"root {side.root}")
    if side.peer is not None and side.peer >= 0:
        parts.append(f"peer {side.peer}")
    if side.tag:
        parts.append(f"tag {side.tag}")
    return "  ".join(p for p in parts if p)


def side_status(side: Side, finding: Finding) -> str:
    """A side's status in a word or two: ``waiting 12 s``, ``elsewhere``, ``lost``."""
    if side.op is not None:
        return f"waiting {duration(side.waiting_s)}" if side.waiting_s is not None else "waiting"
    if not set(side.ranks) <= set(finding.culprits):
        return "elsewhere"
    if finding.verdict is Verdict.RANK_LOST:
        return "lost"
    return "gone" if finding.verdict in ENDED else "elsewhere"


def short_path(path: str) -> str:
    """The last part of a path: ``/job/src/train.py`` and ``C:\\job\\train.py`` are ``train.py``."""
    name = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return plain(name or path, 400)


def shown_path(path: str) -> str:
    """The path, relative to the working directory if it is below that."""
    here = os.getcwd().rstrip("/") + "/"
    return plain(path.removeprefix(here), 400)


def place(frame: Frame) -> str:
    """``train.py:88 in backward``."""
    return f"{short_path(frame.filename)}:{frame.line} in {plain(frame.name, 80)}"


def whereabouts(report: RankReport) -> str:
    """Where a rank is, in one line: its innermost frame, else how it ended or its phase."""
    return place(report.stack[0]) if report.stack else report.exit or report.phase or ""


def confidence_note(verdict: Verdict, confidence: Confidence, unknowns: Sequence[str] = ()) -> str:
    """Why a verdict is not certain; empty if it is, or if its own text says so.

    ``unknowns``: the missing evidence that limits the confidence, if any.
    """
    if verdict is Verdict.INCONCLUSIVE:
        return ""
    if confidence is Confidence.LIKELY and unknowns:
        return "likely: some evidence is missing"
    if confidence is Confidence.LIKELY:
        return "likely: what is on record fits it best, and does not prove it"
    if confidence is Confidence.AMBIGUOUS:
        return "ambiguous: nothing decides between the sides"
    return ""


def scene(diagnosis: Diagnosis) -> str:
    """The line beside the badge: ``4 ranks · gloo · no progress for 12 s``."""
    parts = []
    world = diagnosis.world_size or len(diagnosis.ranks)
    if world:
        parts.append(f"{world:,} rank{'s' if world != 1 else ''}")
    if diagnosis.backend:
        parts.append(plain(diagnosis.backend, 40))
    if (
        diagnosis.stalled_s is not None
        and diagnosis.stalled_s >= 0.5
        and is_problem(diagnosis.verdict)
    ):
        parts.append(f"no progress for {duration(diagnosis.stalled_s)}")
    parts.append("live" if diagnosis.live else "post-mortem")
    return " · ".join(parts)
