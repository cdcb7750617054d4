"""Prints silent corruption found by ``HANGSCOPE_CHECK_REDUCE`` while the job runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from hangscope.ring.run_directory import opened

MAX_SAID = 20
"""Findings printed; a broken link would otherwise fill the log."""
MOST_AT_ONCE = 1 << 20
"""Bytes read per look; a longer line is not a finding."""


class Corruptions:
    """Follows the findings that ranks append to files in the run directory."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}
        self._said = 0

    def new(self, paths: Iterable[str]) -> Iterator[str]:
        """One line per finding that was added to these files since the last call."""
        for path in sorted(paths):
            try:
                with _opened(path) as file:
                    file.seek(self._read.get(path, 0))
                    raw = file.read(MOST_AT_ONCE)
            except OSError:
                continue
            whole = raw[: raw.rfind(b"\n") + 1] if len(raw) < MOST_AT_ONCE else raw
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                yield from self._sentence(line)

    def _sentence(self, line: bytes) -> Iterator[str]:
        try:
            text = str(json.loads(line)["text"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        self._said += 1
        if self._said <= MAX_SAID:
            yield f"silent corruption: {text}"
        elif self._said == MAX_SAID + 1:
            yield "silent corruption: more of it; the run directory has the rest"


def _opened(path: str) -> BinaryIO:
    folder, name = os.path.split(path)
    with opened(folder) as directory:
        return os.fdopen(directory.own_file(name), "rb")
