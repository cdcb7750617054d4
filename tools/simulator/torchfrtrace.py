"""Scores ``torchfrtrace``, the analyzer that ships with torch, on the same files.

The ranks it blames are parsed from its output: those it lists as missing from a collective, and
those it lists as culprits of an error. It has no verdicts, so only the ranks count.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import re
from pathlib import Path
from typing import Any

from tools.simulator.case import Truth

_MISSING = re.compile(r"missing ranks: \{([\d, ]*)\}")
_CULPRIT = re.compile(r"[Cc]ulprit rank (\d+)")
_RANKS = re.compile(r"\d+")


def blamed(folder: Path) -> set[int]:
    """Ranks that ``torchfrtrace`` blames for the dumps in ``folder``. Raises what it raises."""
    from torch.distributed.flight_recorder import fr_trace

    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    logger: Any = logging.getLogger("Flight Recorder")
    root = logging.getLogger()
    handlers = [(logger, list(logger.handlers)), (root, list(root.handlers))]
    for target, _ in handlers:
        target.handlers = [handler]
    try:
        with contextlib.redirect_stdout(lines), contextlib.redirect_stderr(lines):
            fr_trace.main([str(folder), "--allow-incomplete-ranks"])
    finally:
        gc.enable()  # torchfrtrace leaves garbage collection disabled
        for target, before in handlers:
            target.handlers = before
    text = lines.getvalue()
    ranks: set[int] = set()
    for match in _MISSING.finditer(text):
        ranks |= {int(r) for r in _RANKS.findall(match.group(1))}
    ranks |= {int(match.group(1)) for match in _CULPRIT.finditer(text)}
    return ranks


def judge(folder: Path, truth: Truth) -> tuple[str, str]:
    """(outcome, detail): exact if exactly the culprits are named, or nobody if there are none."""
    try:
        ranks = blamed(folder)
    except (Exception, SystemExit) as error:
        return "crash", f"{type(error).__name__}: {error}"[:200]
    if ranks == truth.culprits:
        return "exact", str(sorted(ranks))
    if not ranks:
        return "undecided", "names nobody"
    if truth.ambiguous_with and truth.culprits <= ranks <= truth.ambiguous_with:
        return "exact", str(sorted(ranks))
    return "wrong", str(sorted(ranks))
