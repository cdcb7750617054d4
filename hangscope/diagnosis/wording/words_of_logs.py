"""A finding in the words of somebody who has a log and no dumps."""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Finding

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


def in_words_of_logs(context: Context, finding: Finding) -> Finding:
    """The finding without words of dumps, if there are only logs."""
    if not context.trace.only_logs:
        return finding
    unknowns = tuple(dict.fromkeys(map(_said, finding.unknowns)))
    return replace(
        finding,
        why=_said(finding.why),
        evidence=tuple(map(_said, finding.evidence)),
        unknowns=unknowns,
    )


def _said(text: str) -> str:
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text
