"""Kernels that gave up waiting for a peer: torch's symmetric memory, DeepEP, userbuffers.

Such a kernel prints which peer it waits for and ends itself with a trap. The device errors that its
process then reports are not failures of the device.
"""

from __future__ import annotations

import re

from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import Evidence

_SIGNAL = re.compile(
    r"SymmetricMemory::\w{1,40}:? rank (?P<own>\d{1,7}) failed to (?:send signal to|"
    r"receive signal from) rank (?P<peer>\d{1,7})\b"
)
_DEEP_EP = re.compile(
    r"DeepEP timeout check failed|DeepEP [\w \-()]{1,80} timeout|timeout \(dispatch CPU\)|"
    r"DeepEP error: CPU recv timeout"
)
_USER_BUFFERS = re.compile(r"\[\d{1,7}\]: ?expecting -?\d+ got -?\d+")
WORDS = ("SymmetricMemory::", "DeepEP ", "timeout (dispatch", ": expecting ", ":expecting ")


class KernelTimeouts:
    """Tracks which ranks wait for which; who is missing is known at the end of the log."""

    def __init__(self) -> None:
        self._waits: dict[int, set[int]] = {}
        self._places = False
        """Whether the numbers are ranks inside a smaller group."""
        self._first: tuple[LogLine, int] | None = None

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        """Record what such a line says. Returns whether it was one."""
        found = _SIGNAL.search(line.text)
        if found:
            own, peer = int(found["own"]), int(found["peer"])
            self._places |= line.is_place(own) or line.local_rank not in (None, own)
            self._waits.setdefault(own, set()).add(peer)
            self._first = self._first or (line, at_ns)
            evidence.trapped = True
            return True
        if _DEEP_EP.search(line.text):
            evidence.trapped = True
        elif not _USER_BUFFERS.search(line.text):
            return False
        evidence.claim("timeout", line, at_ns, reporter=line.rank, certain=False)
        return False  # it may also be an exception

    def finish(self, evidence: Evidence) -> None:
        """Accuse ranks that others waited for and that waited for nobody."""
        if self._first is None:
            return
        line, at_ns = self._first
        late = {peer for peers in self._waits.values() for peer in peers} - set(self._waits)
        if late and not self._places and len(late) <= len(self._waits):
            for rank in self._waits:
                evidence.of(rank)
            accused, said = tuple(sorted(late)), line._replace(rank=None)
            evidence.claim("missing_ranks", said, at_ns, accused=accused, certain=len(late) == 1)
        else:
            evidence.claim("timeout", line, at_ns, certain=False)
