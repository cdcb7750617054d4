"""What a log of NCCL's profiler events says of each operation, without times and handles.

The logs are those of `probe.cpp`: a line per event, with the communicator's hash, the function, the
number of channels that the device began and ended, and so on. ``python -m
tests.pretend_gpu.patterns FOLDER`` writes the patterns of logs named ``PROGRAM_rankN.log`` as JSON
to stdout; `recorded.json` was made in this way from four jobs with four ranks on one H200 (torch
2.11.0, NCCL 2.28.9, links by sockets): one without a fault, a graph that one rank does not replay
any more, a rank that leaves after a step, and a kernel that never ends on rank 1.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_INIT = re.compile(r"init comm=(\w+) .*nodes=(\d+) ranks=(\d+) rank=(\d+)")
_OPERATION = re.compile(
    r"coll\+ id=(\d+) comm=(\w+) r\d+/\d+ seq=(\d+) (\w+) n=(\d+) (\w+) nch=(\d+) (\S+)"
)
_COMMUNICATOR = re.compile(r"(?:init|coll\+ id=\d+) comm=(\w+)")
_HOST = re.compile(r"(ev1|coll|ev)[+-] ")
_CHANNEL = re.compile(r"kch\+ id=(\d+) of=(\d+)")
_ENDED = re.compile(r"kch- id=(\d+)")


@dataclass(frozen=True, slots=True)
class Pattern:
    """What one rank's log says."""

    communicators: list[str]
    """``NAME RANKS RANK``, in the order of their creation; the same name on all members."""
    operations: list[str]
    """``NAME FUNCTION #SEQUENCE COUNT TYPE ALGORITHM, CHANNELS: began, ended``, by host order."""
    host: list[str]
    """The distinct orders of the host's events around one operation."""
    closed: int
    """Communicators that were closed."""


def patterns(logs: Mapping[str, Sequence[str]]) -> dict[str, Pattern]:
    """The patterns of one job's logs by rank."""
    names: dict[str, str] = {}
    for rank in sorted(logs):
        for line in logs[rank]:
            if found := _COMMUNICATOR.search(line):
                names.setdefault(found[1], chr(ord("A") + len(names)))
    return {rank: _pattern(lines, names) for rank, lines in sorted(logs.items())}


def _pattern(lines: Iterable[str], names: Mapping[str, str]) -> Pattern:
    communicators, host, closed = [], "", 0
    said: dict[str, str] = {}
    parents: dict[str, str] = {}
    began: dict[str, int] = defaultdict(int)
    ended: dict[str, int] = defaultdict(int)
    for line in lines:
        if found := _INIT.search(line):
            assert found[2] == found[3], "the members are on hosts of their own"
            communicators.append(f"{names[found[1]]} {found[3]} {found[4]}")
        elif found := _OPERATION.search(line):
            task, hash_, sequence, function, count, datatype, channels, algorithm = found.groups()
            said[task] = (
                f"{names[hash_]} {function} #{sequence} {count} {datatype} {algorithm}, {channels}"
            )
        elif found := _CHANNEL.search(line):
            parents[found[1]] = found[2]
            began[found[2]] += 1
        elif found := _ENDED.search(line):
            ended[parents[found[1]]] += 1
        closed += "fini comm=" in line
        if found := _HOST.search(line):
            host += f"{found[0].strip()} "
    return Pattern(
        communicators,
        [f"{words}: {began[task]}, {ended[task]}" for task, words in said.items()],
        sorted(set(re.findall(r"ev1\+.*?ev- ", host))),
        closed,
    )


def main() -> None:
    """Print the patterns of a folder's logs."""
    programs: dict[str, dict[str, Sequence[str]]] = defaultdict(dict)
    for path in sorted(Path(sys.argv[1]).glob("*_rank*.log")):
        program, _, rank = path.stem.partition("_rank")
        programs[program][rank] = path.read_text("utf-8").splitlines()
    made = {
        program: {rank: asdict(pattern) for rank, pattern in patterns(logs).items()}
        for program, logs in programs.items()
    }
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
