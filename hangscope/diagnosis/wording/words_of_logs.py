"""A finding in the words of somebody who has a log and no dumps."""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Finding, Verdict
from hangscope.diagnosis.wording import playbook
from hangscope.diagnosis.wording.phrases import rank_s

_WORDS = (
    (re.compile(r"^(ranks? [\d, \u2013]+) left no dump$"), r"nothing is heard of \1"),
    (re.compile(r"^\d+ of \d+ ranks left no dump$"), "most ranks of the group are not heard of"),
    (re.compile(r"^no dump of (ranks? [\d, \u2013]+)$"), r"nothing is heard of \1"),
    (re.compile(r"^(rank \d+): no dump and no log$"), r"\1: does not appear in the log"),
    (
        re.compile(r"^the group's members are not listed; the ranks with dumps stand in for them$"),
        "who belongs to the group is not told: the ranks that the log mentions stand in for them",
    ),
    (re.compile(r"\bleft no dump\b"), "left no line"),
)
_MOST_NAMED = 16
_DUMPS = (
    "TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.8) and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 make every rank write what it was in at the next timeout, and "
    "HANGSCOPE=1 says it at once"
)


def in_words_of_logs(context: Context, finding: Finding) -> Finding:
    """The finding without words of dumps, if there are only logs."""
    if not context.trace.only_logs:
        return finding
    unknowns = tuple(dict.fromkeys(map(_said, finding.unknowns)))
    return replace(
        finding,
        why=_said(finding.why),
        fix=_what_to_collect(context, finding) or finding.fix,
        evidence=tuple(map(_said, finding.evidence)),
        unknowns=unknowns,
    )


def _said(text: str) -> str:
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text


def _what_to_collect(context: Context, finding: Finding) -> str:
    """Whose log is missing, and what would tell more next time; empty if the advice is another."""
    if finding.fix != playbook.by_verdict(Verdict.INCONCLUSIVE).fix:
        return ""
    waiting = {rank for side in finding.sides for rank in side.ranks}
    silent = sorted(context.known_ranks - waiting)
    group = "the other members of the group"
    whose = rank_s(silent) if 0 < len(silent) <= _MOST_NAMED and waiting else group
    return f"look at the logs of {whose} (each node's own): who printed nothing of this; {_DUMPS}"
