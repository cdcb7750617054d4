"""How far NCCL's communicators have been created, as its lines of level INFO tell.

Newer versions say which rank begins (``Init START``) and has finished (``Init COMPLETE``) which
communicator; older ones only show who connects (``Channel``) and who has connected.
"""

from __future__ import annotations

import re
from collections import defaultdict

from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.lines.line import LogLine

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

    def read(self, line: LogLine, process: Process | None, evidence: Evidence) -> Member | None:
        """Record how far a process is; returns the member that it has become, if it says so."""
        text, member = line.text, None
        if "Init START" in text or "Init COMPLETE" in text:
            member = self._member(line, evidence)
        connected = any(words in text for words in _CONNECTED)
        if process is not None and (connected or any(words in text for words in _CONNECTING)):
            self._connects = line
            if connected:
                rank = member[1] if member else -1
                self._connected[process] = max(rank, self._connected.get(process, -1))
        return member

    def _member(self, line: LogLine, evidence: Evidence) -> Member | None:
        found = MEMBER.search(line.text)
        if not found:
            return None
        rank, size = int(found["rank"]), int(found["size"])
        self._size = max(self._size, size)
        name = _COMM_ID.search(line.text, found.end())
        complete = line.text.find("Init COMPLETE", found.end()) >= 0
        if name:
            self._begun[name[1], size][rank] = line
            if complete:
                self._made[name[1], size].add(rank)
            else:
                self._newest[name[1], size] = evidence.lines
        return (name[1] if name else "", rank, size) if complete else None

    def finish(self, processes: dict[Process, int], evidence: Evidence, *, stood: bool) -> None:
        """State which communicators were never created, and because of whom.

        ``processes``: the device of each that NCCL mentions. ``stood``: the job was not moving.
        """
        for name, begun in self._begun.items():
            went_on = evidence.lines - self._newest.get(name, evidence.lines) >= name[1]
            if not self._made[name]:
                _not_begun(name[1], begun, stood or went_on, evidence)
            if len(begun) == name[1]:
                self._not_made(name, stood or went_on, evidence)
        if self._connects is not None and not self._begun:
            self._not_connected(self._connects, processes, evidence)

    def _not_made(self, name: tuple[str, int], waited: bool, evidence: Evidence) -> None:
        """A communicator that all began to create and that some or all have not created."""
        begun, made, size = self._begun[name], self._made[name], name[1]
        rest = sorted(set(begun) - made)
        if not rest or size < _FEWEST or not (waited or made):
            return
        which = f"a communicator of {size} ranks"
        line = begun[rest[0]]._replace(rank=None)
        if made and len(rest) * 2 < size:
            who = f"rank{'s' if len(rest) > 1 else ''} {str(rest[:8])[1:-1]}"
            others = f"the other {len(made)} have created it"
            text = f"the initialisation of {which} hangs on {who}: {others}"
            evidence.claim("rendezvous", line.saying(text), 0, accused=tuple(rest))
        elif not made:
            text = f"creating {which}: all have begun and nobody has finished"
            evidence.claim("rendezvous", line.saying(text), 0, certain=False, creating=size)

    def _not_connected(
        self, line: LogLine, processes: dict[Process, int], evidence: Evidence
    ) -> None:
        """Of versions that name no communicator: who has connected, and who has not."""
        if evidence.claims or any(n.operations or n.counters for n in evidence.ranks.values()):
            return
        rest = sorted(set(processes) - set(self._connected))
        made, line = set(self._connected.values()) - {-1}, line._replace(rank=None)
        missing = {*range(self._size)} - made if self._size <= _LARGEST else set()
        done = len(processes) - len(rest)
        if not rest:
            text = (
                f"all {done} processes have created a communicator of NCCL's: what they wait for "
                "comes later and left no line"
            )
        elif not done:
            text = f"{len(rest)} processes create a communicator of NCCL's, and none has finished"
        else:
            which = ", ".join(
                f"device {processes[place]} of {place[0]} (process {place[1]})"
                for place in rest[:8]
            )
            text = f"the initialisation of NCCL hangs on {which}: the other {done} have connected"
            if len(missing) == len(rest) < done:
                accused = tuple(missing)
                evidence.claim("rendezvous", line.saying(text), 0, accused=accused)
                return
        evidence.claim("other", line.saying(text), 0, certain=False, stands=True)


def at_root(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """What the first rank of a communicator says about those that reported to it."""
    twice, counts = _TWICE.search(line.text), _COUNTS.search(line.text)
    if twice:
        evidence.claim("rendezvous", line, at_ns, certain=False, twice=int(twice[1]))
    elif counts:
        sizes = (int(counts[1]), int(counts[2]))
        evidence.claim("rendezvous", line, at_ns, certain=False, sizes=sizes)
    return bool(twice or counts)


def _not_begun(size: int, begun: dict[int, LogLine], waited: bool, evidence: Evidence) -> None:
    """A communicator that was never created because a few members did not begin to.

    ``waited``: the log goes on after the last one began, so the others are not merely cut off.
    """
    absent = sorted(set(range(size)) - set(begun)) if size <= _LARGEST else []
    if not absent or len(absent) * 2 >= size:
        return
    text = f"{len(begun)} of {size} ranks began to make a communicator of NCCL's, not "
    line = next(iter(begun.values())).saying(text + str(absent)[1:-1][:80])._replace(rank=None)
    accused = tuple(absent) if waited else ()
    evidence.claim("rendezvous", line, 0, accused=accused, certain=len(absent) == 1)
