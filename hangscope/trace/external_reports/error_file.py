"""Reads torch elastic's error files: ``{"message": {"message": ..., "extraInfo": {...}}}``.

A process started by torchrun whose main function is decorated with ``record`` writes one when it
raises, at ``<log dir>/<run>/attempt_<n>/<local rank>/error.json``.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hangscope.trace import clean
from hangscope.trace.files import file_names
from hangscope.trace.job_log.fragments import fragments_of
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.read import gather
from hangscope.trace.model import Fragment

_MAX_LINES = 2000


def is_error_file(document: Any) -> bool:
    """Whether a document is an error file."""
    return isinstance(document, Mapping) and _extra(document) is not None


def _extra(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    message = document.get("message")
    extra = message.get("extraInfo") if isinstance(message, Mapping) else None
    known = isinstance(extra, Mapping) and "py_callstack" in extra
    return extra if known else None


def read_error_file(document: Mapping[str, Any], path: str, file: Path | None) -> list[Fragment]:
    """The exception, attributed to the rank that the file's path states; see `is_error_file`."""
    rank = file_names.rank_of_log(file) if file is not None else None
    local = file_names.local_rank_of_log(file) if file is not None else None
    extra = _extra(document) or {}
    moment = time.gmtime(clean.as_int(extra.get("timestamp"), 0, low=0, high=1 << 33))
    evidence = gather(_lines(extra, rank, local, moment), moment.tm_year)
    return fragments_of(evidence, path, whole_file_rank=rank)


def _lines(
    extra: Mapping[str, Any], rank: int | None, local: int | None, moment: time.struct_time
) -> Iterator[LogLine]:
    stack = extra.get("py_callstack")
    text = stack if isinstance(stack, str) else ""
    at_ns = calendar.timegm(moment) * 10**9 if moment.tm_year > 1970 else 0
    for number, line in enumerate(clean.prose(text, 1 << 18).split("\n")[:_MAX_LINES], start=1):
        yield LogLine(
            line, rank=rank, local_rank=local, at_ns=at_ns, number=number, excepthook=True
        )
