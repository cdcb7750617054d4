"""Kill all ranks of a real job with SIGKILL at once, at a random moment, again and again.

After each kill, every ring must be readable and may lack at most the record that was being written.
The truth comes from shared memory beside the job: each rank stores the number of calls begun before
every collective, and the number of calls returned after it.

    python -m tools.random_kills --rounds 200
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from hangscope.ring.reader import RingReader

COUNTS = struct.Struct("=qq")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One rank after one kill: records in the ring against calls begun and returned."""

    rank: int
    begun: int
    returned: int
    recorded: int
    torn: int

    @property
    def right(self) -> bool:
        """Whether at most the record of the call in flight is missing, and none is invented."""
        return self.returned <= self.recorded <= self.begun and self.torn <= 1


def rank_main(rank: int, world: int, directory: Path, store: Path, counts: mmap.mmap) -> None:
    """A rank that issues collectives as fast as it can, until it is killed."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world),
        HANGSCOPE_DIR=str(directory),
        HANGSCOPE_MONITOR="0",
        HANGSCOPE_BUFFER="256",  # so that it wraps many times before the kill
    )
    import hangscope

    assert hangscope.start()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    tensor = torch.ones(16)
    at = rank * COUNTS.size
    number = 0
    while True:
        number += 1
        struct.pack_into("=q", counts, at, number)
        dist.all_reduce(tensor)
        struct.pack_into("=q", counts, at + 8, number)


def one_kill(world: int, moment_s: float) -> list[Outcome]:
    """Start a job, kill it after ``moment_s`` of work, and read its rings."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        counts = mmap.mmap(-1, mmap.PAGESIZE)
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                try:
                    rank_main(rank, world, directory, directory / "store", counts)
                except BaseException as error:
                    print(f"rank {rank}: {error!r}", file=sys.stderr)
                os._exit(1)
            children.append(child)
        deadline = time.monotonic() + 60
        while any(COUNTS.unpack_from(counts, r * COUNTS.size)[1] == 0 for r in range(world)):
            if time.monotonic() > deadline:
                raise TimeoutError("the ranks did not begin to work within a minute")
            time.sleep(0.001)
        time.sleep(moment_s)
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        return [outcome(directory, rank, counts) for rank in range(world)]


def outcome(directory: Path, rank: int, counts: mmap.mmap) -> Outcome:
    """Compare a killed rank's ring with what it did."""
    reader = RingReader(directory / f"rank_{rank}.ring")
    slots, torn = reader.slots()
    begun, returned = COUNTS.unpack_from(counts, rank * COUNTS.size)
    recorded = int(slots["collective_seq"][-1]) if len(slots) else 0
    contiguous = slots["record_id"].astype(int)
    assert (contiguous[1:] - contiguous[:-1] == 1).all(), "a record in the middle is missing"
    reader.close()
    return Outcome(rank, begun, returned, recorded, torn)


def run(rounds: int, world: int, seed: int) -> list[Outcome]:
    """Many kills at random moments; returns every rank's outcome."""
    moments = random.Random(seed)
    return [result for _ in range(rounds) for result in one_kill(world, moments.uniform(0.0, 0.08))]


def main() -> int:
    """Print a line of figures; exit status 1 if any ring was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began_s = time.monotonic()
    outcomes = run(arguments.rounds, arguments.world, arguments.seed)
    wrong = [o for o in outcomes if not o.right]
    missing = sum(o.recorded < o.begun for o in outcomes)
    print(
        f"{arguments.rounds} kills of {arguments.world} ranks, {len(outcomes)} rings, "
        f"{sum(o.recorded for o in outcomes)} records issued: {len(wrong)} wrong, "
        f"{missing} without the record in flight, {sum(o.torn for o in outcomes)} torn slots, "
        f"{time.monotonic() - began_s:.0f} s"
    )
    for bad in wrong:
        print(f"  {bad}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
