"""How far NCCL's communicators have been created, as its lines of level INFO tell.

Newer versions say which rank begins (``Init START``) and has finished (``Init COMPLETE``) which
communicator; older ones only show who connects (``Channel``) and who has connected.
"""

from __future__ import annotations

import re
from collections import defaultdict

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.model import ClaimDetails

MEMBER = re.compile(
    r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) n[rR]anks (?P<size>\d{1,7}) "
)
_COMM_ID = re.compile(r"commId (0x[0-9a-f]{1,16})")
_TWICE = re.compile(r"Bootstrap Root : rank (\d{1,7}) of (\d{1,7}) ranks has already checked in")
_COUNTS = re.compile(r"Bootstrap Root : mismatch in rank count from procs (\d{1,7}) : (\d{1,7})")
_CONNECTING = (" NCCL INFO Channel ", " NCCL INFO threadThresholds ", " NCCL INFO NVLS comm ")
_CONNECTED = ("Connected all rings", "Init COMPLETE")
WORDS = ("Bootstrap Root", "Init START", *_CONNECTED)
HEADS = (*WORDS, *_CONNECTING)
_LARGEST = 1 << 14
_FEWEST = 2

Process = tuple[str, int]
"""(host, pid)"""
Member = tuple[str, int, int]
"""(name of the communicator, rank in it, its size)"""


class Initialisation:
    """Tracks who has begun to create which communicator, and who has created it."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, int], dict[int, LogLine]] = defaultdict(dict)
        self._newest: dict[tuple[str, int], int] = {}
        """The number of lines after which the last rank began to create a communicator."""
        self._made: dict[tuple[str, int], set[int]] = defaultdict(set)
        """Who has created it."""
        self._connected: dict[Process, int] = {}
        """The processes that have connected to all others, with their rank; -1 if unknown."""
        self._size = 0
        self._connects: LogLine | None = None
        """The newest line about connections."""

    @property
    def is_told(self) -> bool:
        """Whether there is any such line."""
        return bool(self._begun) or self._connects is not None

    def read(self, line: LogLine, process: Process | None, attempt: Attempt) -> Member | None:
        """Record how far a process is; returns the member that it has become, if it says so."""
        text, member = line.text, None
        found = MEMBER.search(text) if "Init START" in text or "Init COMPLETE" in text else None
        if found:
            rank, size = int(found["rank"]), int(found["size"])
            self._size = max(self._size, size)
            named, after = _COMM_ID.search(text, found.end()), text[found.end() :]
            name = named[1] if named else ""
            if name:
                self._begun[name, size][rank] = line
            if "Init COMPLETE" in after:
                member = name, rank, size
                self._made[name, size].add(rank)
            elif name:
                self._newest[name, size] = attempt.lines
        connected = any(words in text for words in _CONNECTED)
        if process is not None and (connected or any(words in text for words in _CONNECTING)):
            self._connects = line
            if connected:
                rank = member[1] if member else -1
                self._connected[process] = max(rank, self._connected.get(process, -1))
        return member

    def finish(self, processes: dict[Process, int], attempt: Attempt, *, stood: bool) -> None:
        """State which communicators were never created, and because of whom.

        ``processes``: the device of each that NCCL mentions. ``stood``: the job was not moving.
        """
        for (name, size), begun in self._begun.items():
            made = self._made[name, size]
            newest = self._newest.get((name, size), attempt.lines)
            # The log goes on after the last one began: the others are not merely cut off.
            waited = stood or attempt.lines - newest >= size
            if not made:
                _not_begun(size, begun, waited, attempt)
            if len(begun) == size >= _FEWEST and (waited or made):
                _not_made(size, begun, made, attempt)
        known = any(n.operations or n.counters for n in attempt.ranks.values())
        if self._connects is not None and not (self._begun or attempt.stated or known):
            self._not_connected(self._connects._replace(rank=None), processes, attempt)

    def _not_connected(
        self, line: LogLine, processes: dict[Process, int], attempt: Attempt
    ) -> None:
        """Of versions that name no communicator: who has connected, and who has not."""
        rest = sorted(set(processes) - set(self._connected))
        made, done = set(self._connected.values()) - {-1}, len(processes) - len(rest)
        missing = {*range(self._size)} - made if self._size <= _LARGEST else set()
        which = ", ".join(
            f"device {processes[place]} of {place[0]} (process {place[1]})" for place in rest[:8]
        )
        text = f"the initialisation of NCCL hangs on {which}: the other {done} have connected"
        if not rest:
            who = f"all {done} processes have" if done > 1 else "the one process that speaks has"
            text = (
                f"{who} created a communicator of NCCL's: what is waited for comes later and left "
                "no line"
            )
        elif not done:
            text = f"{len(rest)} processes create a communicator of NCCL's, and none has finished"
        elif len(missing) == len(rest) < done:
            attempt.claim("rendezvous", line.saying(text), accused=tuple(missing))
            return
        attempt.claim("other", line.saying(text), certain=False, details=ClaimDetails(stands=True))


def _not_made(size: int, begun: dict[int, LogLine], made: set[int], attempt: Attempt) -> None:
    """A communicator that all began to create and that some or all have not created."""
    rest = sorted(set(begun) - made)
    which = f"a communicator of {size} ranks"
    line = begun[min(begun)]._replace(rank=None)
    if rest and made and len(rest) * 2 < size:
        who = f"rank{'s' if len(rest) > 1 else ''} {str(rest[:8])[1:-1]}"
        others = f"the other {len(made)} have created it"
        text = f"the initialisation of {which} hangs on {who}: {others}"
        attempt.claim("rendezvous", line.saying(text), accused=tuple(rest))
    elif rest and not made:
        text = f"creating {which}: all have begun and nobody has finished"
        attempt.claim(
            "rendezvous", line.saying(text), certain=False, details=ClaimDetails(creating=size)
        )


def _not_begun(size: int, begun: dict[int, LogLine], waited: bool, attempt: Attempt) -> None:
    """A communicator that was never created because a few members did not begin to."""
    absent = sorted(set(range(size)) - set(begun)) if size <= _LARGEST else []
    if not absent or len(absent) * 2 >= size:
        return
    text = f"{len(begun)} of {size} ranks began to make a communicator of NCCL's, not "
    line = next(iter(begun.values())).saying(text + str(absent)[1:-1][:80])._replace(rank=None)
    accused = tuple(absent) if waited else ()
    attempt.claim("rendezvous", line, accused=accused, certain=len(absent) == 1)


def at_root(line: LogLine, attempt: Attempt) -> bool:
    """What the first rank of a communicator says about those that reported to it."""
    twice, counts = _TWICE.search(line.text), _COUNTS.search(line.text)
    if twice:
        attempt.claim("rendezvous", line, certain=False, details=ClaimDetails(twice=int(twice[1])))
    elif counts:
        sizes = (int(counts[1]), int(counts[2]))
        attempt.claim("rendezvous", line, certain=False, details=ClaimDetails(sizes=sizes))
    return bool(twice or counts)
