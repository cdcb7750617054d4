"""How a barrier's cost grows: thousands of simulated ranks on one real TCPStore.

    python tests/toolkit/barrier_scale.py 64 256 1024 4096

Ranks are threads of a few processes, each process with one connection to the store. Printed are
requests per rank without and with looks for the verdict, and the time of a barrier with everybody
there and of one with a missing rank.
"""

from __future__ import annotations

import multiprocessing as mp
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hangscope.toolkit.barriers.meeting import StoreGroup, _Progress, meet

PROCESSES = 4
ROUNDS = 3


class Counted:
    """A torch store that counts its requests."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.looks = 0
        self.others = 0

    def has_extended_api(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def counted(*args: Any) -> Any:
            if name == "check":
                self.looks += 1
            else:
                self.others += 1
            return call(*args)

        return counted


def process(port: int, ranks: range, size: int, absent: int, queue: Any) -> None:
    """Some of the ranks, as threads: three barriers of all, then one with ``absent`` missing."""
    threading.stack_size(128 * 1024)
    store = Counted(dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60)))
    progress = {rank: _Progress() for rank in ranks}
    failures: list[str] = []

    def one(rank: int, timeout_s: float) -> None:
        store_group = StoreGroup(store, "scale", tuple(range(size)), rank, "scale", "life")  # type: ignore[arg-type]
        outcome = meet(store_group, timeout_s=timeout_s, progress=progress[rank])
        if not outcome.met and outcome.missing != (absent,):
            failures.append(f"{rank}: {outcome}")

    def all_of(who: list[int], timeout_s: float) -> float:
        began = time.monotonic()
        threads = [threading.Thread(target=one, args=(rank, timeout_s)) for rank in who]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - began

    whole = [all_of(list(ranks), 120) for _ in range(ROUNDS)]
    looks, others = store.looks, store.others
    failed = all_of([rank for rank in ranks if rank != absent], 5)
    queue.put((min(whole), looks / ROUNDS, others / ROUNDS, failed - 5, failures))


def measure(size: int) -> tuple[float, float, float, float]:
    """Seconds of a full barrier, looks and other requests per rank, seconds to name the missing."""
    server = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), False)
    context = mp.get_context("spawn")
    queue = context.Queue()
    share = -(-size // PROCESSES)
    parts = [range(start, min(size, start + share)) for start in range(0, size, share)]
    workers = [
        context.Process(target=process, args=(server.port, part, size, size // 2, queue))
        for part in parts
    ]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    failures = [failure for result in results for failure in result[4]]
    assert not failures, failures[:3]
    return (
        max(r[0] for r in results),
        sum(r[1] for r in results) / size,
        sum(r[2] for r in results) / size,
        max(r[3] for r in results),
    )


def main() -> None:
    print(
        "| ranks | full barrier (s) | requests per rank | polls per rank | naming the missing (s) |"
    )
    print("|---|---|---|---|---|")
    for text in sys.argv[1:] or ["64", "256", "1024"]:
        size = int(text)
        full, looks, others, failed = measure(size)
        print(f"| {size} | {full:.2f} | {others:.2f} | {looks:.1f} | {failed:.2f} |", flush=True)


if __name__ == "__main__":
    main()
