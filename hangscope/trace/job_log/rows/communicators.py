"""NCCL's communicators, as its lines of level INFO tell: whose processes they are, and how far
they have been created.

Newer versions say which rank begins (``Init START``) and has finished (``Init COMPLETE``) which
communicator; older ones only show who connects (``Channel``) and who has connected.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.lines.line import LogLine, Machine
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.model import ClaimDetails

_PROCESS = re.compile(r"^([\w.\-]+):(\d{1,9}):\d+ \[(\d{1,4})\]")
_BUS = re.compile(r"\bbusId (\w{1,20})")
_COMM_ID = re.compile(r"commId (0x[0-9a-f]{1,16})")
_LARGEST = 1 << 14
_FEWEST = 2

Process = tuple[str, int]
"""(host, pid)"""
Member = tuple[str, int, int]
"""(name of the communicator, rank in it, its size)"""


@dataclass(slots=True)
class Communicators:
    """What NCCL's own lines have shown. The members' numbers in the largest communicators are ranks
    if there is one of that size."""

    speakers: dict[Process, int] = field(default_factory=dict)
    """The device of each process that NCCL mentions."""
    told: dict[Process, int] = field(default_factory=dict)
    """The rank of each process that a prefix or the name of its log states."""
    size: int = 0
    devices: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Host and device of each process, by its rank in the largest ones."""
    are_groups: bool = False
    """There are several of that size: their numbers are ranks inside groups."""
    members: dict[tuple[str, int, str], Member] = field(default_factory=dict)
    """By host, pid and address."""
    begun: dict[tuple[str, int], dict[int, LogLine]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    newest: dict[tuple[str, int], int] = field(default_factory=dict)
    """The number of lines after which the last rank began to create a communicator."""
    made: dict[tuple[str, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    """Who has created it."""
    connected: dict[Process, int] = field(default_factory=dict)
    """The processes that have connected to all others, with their rank; -1 if unknown."""
    connects: LogLine | None = None
    """The newest line about connections."""

    def speaks(self, process: Process, device: int, line: LogLine) -> None:
        """Note that NCCL writes a line in a process."""
        self.speakers[process] = device
        if line.rank is not None:
            self.told.setdefault(process, line.rank)

    def forget_places(self, attempt: Attempt) -> None:
        """The numbers so far were ranks inside groups."""
        for place in self.devices:
            notes = attempt.ranks.get(place)
            if notes is not None:
                attempt.processes.forget(place)
                notes.pid, notes.host = None, None
                if not notes.tells():
                    del attempt.ranks[place]

    def finish(self, attempt: Attempt, *, stood: bool) -> None:
        """State which communicators were never created, and because of whom.

        ``stood``: the job was not moving.
        """
        for (name, size), begun in self.begun.items():
            made = self.made[name, size]
            newest = self.newest.get((name, size), attempt.lines)
            # The log goes on after the last one began: the others are not merely cut off.
            waited = stood or attempt.lines - newest >= size
            if not made:
                _not_begun(size, begun, waited, attempt)
            if len(begun) == size >= _FEWEST and (waited or made):
                _not_made(size, begun, made, attempt)
        known = any(n.operations or n.counters for n in attempt.ranks.values())
        if self.connects is not None and not (self.begun or attempt.stated or known):
            self._not_connected(self.connects._replace(rank=None), attempt)

    def _not_connected(self, line: LogLine, attempt: Attempt) -> None:
        """Of versions that name no communicator: who has connected, and who has not."""
        processes = self.speakers
        rest = sorted(set(processes) - set(self.connected))
        made, done = set(self.connected.values()) - {-1}, len(processes) - len(rest)
        missing = {*range(self.size)} - made if self.size <= _LARGEST else set()
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


def process_of(line: LogLine) -> tuple[str, int, int] | None:
    """The host, pid and device that NCCL puts in front of its messages."""
    found = _PROCESS.match(line.text)
    return (found[1], int(found[2]), int(found[3])) if found else None


def machine_of(host: str, line: LogLine) -> Machine:
    """The machine in the line's prefix, else the one that NCCL itself prints."""
    return line.machine if line.host is not None else Machine(host, line.node)


def _speaks(said: Said, attempt: Attempt) -> bool:
    where, known = process_of(said.line), attempt.part(Communicators)
    if where:
        known.speaks(where[:2], where[2], said.line)
    return False


def _connects(said: Said, attempt: Attempt) -> bool:
    where, known = process_of(said.line), attempt.part(Communicators)
    if where:
        known.connects = said.line
        if said.text("all"):
            known.connected.setdefault(where[:2], -1)
    return False


def _member(said: Said, attempt: Attempt) -> bool:
    """A process begins or ends to create or abort a communicator, in which it has a rank."""
    line, rank, size = said.line, said.number("rank", 7) or 0, said.number("size", 7) or 0
    known, where, named = attempt.part(Communicators), process_of(line), _COMM_ID.search(line.text)
    key, what = (named[1] if named else "", size), said.text("what")
    if key[0] and what != "Abort COMPLETE":
        known.begun[key][rank] = line
    if what == "Init COMPLETE":
        known.made[key].add(rank)
        if where:
            known.members[(*where[:2], said.text("comm"))] = (key[0], rank, size)
            known.connects = line
            known.connected[where[:2]] = max(rank, known.connected.get(where[:2], -1))
    elif key[0] and what == "Init START":
        known.newest[key] = attempt.lines
    _note_process(said, rank, size, known, attempt)
    return False


def _note_process(said: Said, rank: int, size: int, known: Communicators, attempt: Attempt) -> None:
    """Which process has which rank in the largest communicator."""
    line, where = said.line, process_of(said.line)
    if size > known.size:
        known.forget_places(attempt)
        known.size, known.are_groups, known.devices = size, False, {}
    if size < max(known.size, attempt.world_size or 0):
        return
    host, pid = where[:2] if where else (line.host, line.pid)
    if line.rank is None:  # the number is a group rank if two devices have the same one
        device = _BUS.search(said.found[0])
        place = (host or "", device[1] if device else "")
        if device and known.devices.setdefault(rank, place) != place:
            known.forget_places(attempt)
            known.are_groups = True
        if known.are_groups:
            return
    notes = attempt.of(line.rank_or(rank))
    notes.runs_as(host, pid)
    # After one rank has given up, a rank that aborts its communicators is giving up as well.
    notes.partly_recorded |= attempt.given_up and said.text("what") == "Abort COMPLETE"
    if pid is not None:
        machine = machine_of(where[0], line) if where else line.machine
        attempt.processes.is_told(notes.rank, pid, machine)


def _at_root(said: Said, attempt: Attempt) -> None:
    """What the first rank of a communicator says about those that reported to it."""
    sizes = said.number("one", 7), said.number("other", 7)
    details = ClaimDetails(twice=said.number("twice", 7))
    if sizes[0] is not None and sizes[1] is not None:
        details = ClaimDetails(sizes=(sizes[0], sizes[1]))
    attempt.claim("rendezvous", said.line, certain=False, details=details)


# fmt: off
ROWS = (
    row("nccl-process", "process", r"\] NCCL (?:INFO|WARN)", _speaks,
        "n0:30:60 [0] NCCL INFO Launch mode Parallel", passing=True),
    row("nccl-connects", "remark", (
        " NCCL INFO Channel ", " NCCL INFO threadThresholds ", " NCCL INFO NVLS comm ",
        r"(?P<all>Connected all rings)"), _connects,
        "n0:30:60 [0] NCCL INFO Channel 00/02 :    0   1",
        "n0:30:60 [0] NCCL INFO Connected all rings"),
    row("communicator", "process",
        r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) n[rR]anks (?P<size>\d+) .{0,400}?"
        r"(?P<what>Init COMPLETE|Init START|Abort COMPLETE)", _member,
        "n0:30:60 [0] NCCL INFO ncclCommInitRankConfig comm 0x50 rank 0 nranks 4 cudaDev 0 nvmlDev "
        "0 busId 0000 commId 0x9f8e7d6c - Init COMPLETE"),
    row("bootstrap-root", "missing ranks", (
        r"Bootstrap Root : rank (?P<twice>\d{1,7}) of \d{1,7} ranks has already checked in",
        r"Bootstrap Root : mismatch in rank count from procs (?P<one>\d{1,7}) : "
        r"(?P<other>\d{1,7})"), _at_root,
        "n0:30:60 [0] NCCL WARN Bootstrap Root : rank 1 of 4 ranks has already checked in",
        "n0:30:60 [0] NCCL WARN Bootstrap Root : mismatch in rank count from procs 4 : 2"),
)
# fmt: on
