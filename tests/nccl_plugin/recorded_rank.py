"""Plays one rank of a recorded job: its ring, and the events that NCCL told then.

``python -m tests.nccl_plugin.recorded_rank LIBRARY FOLDER RANK LOG MEMBERS [INTERFACE]``. MEMBERS
is JSON: per hash of a communicator a group's name and ranks, or null if torch does not know it.

A line of the log is ``TIME EVENT FIELDS``, written by a plugin that printed what it was told on an
H200 with NCCL 2.28.9. What it was told of a graph's replay is marked here by the test, as that
plugin did not ask for it: the captured all-reduce has 1,024 elements, from its second time on.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

from hangscope.ring.device_layout import device_path
from hangscope.ring.layout import SlotFlag
from tests.live_rings import RingRank
from tests.nccl_plugin.driver import Nccl

OPERATIONS = {
    "AllReduce": "all_reduce", "Broadcast": "broadcast", "AllGather": "_allgather_base",
    "ReduceScatter": "_reduce_scatter_base",
}  # fmt: skip
CAPTURED = ("AllReduce", 1024)
_COLL = re.compile(
    r"id=(\d+) comm=(\w+) r\d+/\d+ seq=(\d+) (\w+) n=(\d+) (\w+) nch=(\d+) (\w+)/(\w+)"
)
_CHANNEL = re.compile(r"id=(\d+) of=(\d+)\(.*\) ch=(\d+) t=(\d+)")
_STOP = re.compile(r"id=(\d+) #\d+ ch=\d+ t=(\d+)")
_INIT = re.compile(r"comm=(\w+) name=(\S*) nodes=\d+ ranks=(\d+) rank=(\d+)")


class RecordedRank:
    """The ring and the plugin of one rank."""

    def __init__(
        self, library: Path, folder: Path, rank: int, members: dict[str, list[object] | None],
        interface: int,
    ) -> None:  # fmt: skip
        self.ring = RingRank(folder, rank, 4, slots=256, pid=os.getpid(), backend="nccl")
        self.nccl = Nccl(library, device_path(folder.absolute() / f"rank_{rank}.ring"), interface)
        self.members = members
        self.groups: dict[str, int] = {}
        self.contexts: dict[str, int | None] = {}
        self.operations: dict[str, int] = {}
        self.channels: dict[str, int] = {}
        self.captured = 0

    def play(self, line: str) -> None:
        """Tell the plugin what one line says."""
        told_at, event, rest = line.rstrip().split(" ", 2)
        since_ns = time.time_ns() - int(told_at.replace(".", "")) * 1000
        if event == "init" and (found := _INIT.match(rest)):
            hash_, name, ranks, rank = found.groups()
            self.contexts[hash_] = self.nccl.init(
                int(hash_, 16), int(ranks), int(rank), name.encode()
            )
        elif event == "coll+" and (found := _COLL.match(rest)):
            self._enqueue(*found.groups())
        elif event == "kch+" and (found := _CHANNEL.match(rest)):
            number, of, channel, at_ns = found.groups()
            comm, operation = self.operations[of]
            self.channels[number] = self.nccl.begin(
                comm, operation, int(channel), int(at_ns) + since_ns
            )
        elif event == "kch.22" and (found := _STOP.match(rest)):
            self.nccl.end(self.channels[found[1]], int(found[2]) + since_ns)
        elif event == "fini":
            self.nccl.finalize(self.contexts[rest.removeprefix("comm=")])

    def _enqueue(
        self, number: str, comm: str, seq: str, func: str, count: str, datatype: str,
        channels: str, algorithm: str, protocol: str,
    ) -> None:  # fmt: skip
        replayed = (func, int(count)) == CAPTURED and self._is_replay()
        if self.members[comm] is not None and not replayed:
            self._record(comm, func, int(count))
        handle = self.nccl.coll(
            self.contexts[comm], func.encode(), int(seq), count=int(count),
            datatype=datatype.encode(), channels=int(channels), algorithm=algorithm.encode(),
            protocol=protocol.encode(), captured=replayed, hash=int(comm, 16), rank=0,
        )  # fmt: skip
        self.operations[number] = self.contexts[comm], handle

    def _is_replay(self) -> bool:
        self.captured += 1
        return self.captured > 1

    def _record(self, comm: str, func: str, count: int) -> None:
        """The record that torch's call leaves just before NCCL is called."""
        if comm not in self.groups:
            name, ranks = self.members[comm]
            self.groups[comm] = self.ring.join(str(name), str(name), ranks)
        self.ring.issue(
            self.groups[comm], OPERATIONS[func], sizes=((count,),), flags=SlotFlag.UNOBSERVED
        )


def main() -> None:
    """Play a whole log; the ring stays as that process left it."""
    library, folder, rank, log, members, *rest = sys.argv[1:]
    interface = int(rest[0]) if rest else 5
    player = RecordedRank(Path(library), Path(folder), int(rank), json.loads(members), interface)
    for line in Path(log).read_text().splitlines():
        player.play(line)


if __name__ == "__main__":
    main()
