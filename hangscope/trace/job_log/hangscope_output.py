"""Recognises HangScope's own output in a log; its reports quote evidence but are none."""

from __future__ import annotations

import re
from typing import Final

from hangscope.trace.facts import UNRECORDED
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.lines.line import LogLine

OWN_REPORT: Final = "own_report"
"""The kind of a claim that repeats the first sentence of a report."""
OWN_ALL_CLEAR: Final = "own_all_clear"
"""The kind of a claim which repeats that a hung job is moving again."""
_OWN = "[hangscope]"
_LONGEST = 400
"""Maximum number of lines of one report."""
_VERDICT = re.compile(r"(?![a-z])\S")
"""A verdict is a sentence; all other messages of HangScope begin with a lower-case letter."""
_MOVES = "moving again"
_ENDED = "· post-mortem"
"""The end of a report's heading if the job was over."""
_UNRECORDED = re.compile(r"rank (\d{1,7}): not recording, the job goes on: (?P<why>[^;]{1,200})")
_OTHERS = re.compile(
    r"(?:\[rank ?\d|\[[EWIF]\d|[EWIF]\d{4} \d\d:|Traceback|Failures:|Root Cause|=====|srun:|"
    r"terminate called|\S+ FAILED|[\w.]+(?:Error|Exception):)"
)


class HangscopeLines:
    """Follows a report from its first line to the first line of another writer."""

    def __init__(self) -> None:
        self._left = 0
        """How many more lines may belong to the report."""
        self._is_over = False
        """Whether the newest report is about a job incarnation that has ended."""

    def holds(self, line: LogLine, attempt: Attempt) -> bool:
        """Whether the line is HangScope's own; records its verdict as a claim."""
        text = line.text.lstrip() if _OWN in line.text else ""
        if text.startswith(_OWN):
            self._left = _LONGEST
            self._note(line.saying(text[len(_OWN) :].strip()), attempt)
            return True
        if not self._left:
            return False
        plain = line.rank is None and not line.level and not _OTHERS.match(line.text)
        self._left = self._left - 1 if plain else 0
        self._is_over |= plain and line.text.rstrip().endswith(_ENDED)
        return plain

    def _note(self, said: LogLine, attempt: Attempt) -> None:
        if _VERDICT.match(said.text):
            if self._is_over:  # the job was started again
                attempt.withdraw(OWN_REPORT)
                self._is_over = False
            attempt.claim(OWN_REPORT, said, certain=False, words=said.excerpt)
        elif said.text.startswith(_MOVES):
            attempt.withdraw(OWN_REPORT)
            attempt.claim(OWN_ALL_CLEAR, said, certain=False)
        elif unrecorded := _UNRECORDED.match(said.text):
            rank = int(unrecorded[1])
            attempt.claim(UNRECORDED, said.saying(unrecorded["why"]), accused=(rank,))
