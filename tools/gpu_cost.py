"""What NCCL's plugin costs: two ranks, times on the host and of whole steps (`tools.gpu_faults`).

Prints one JSON line from rank 0: medians in microseconds of an all-reduce's call, of a step of
sixteen all-reduces with a wait, and of a replay of a graph of four all-reduces.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from tools.gpus import take_gpu

ROUNDS, CALLS = 25, 16


def median_us(act: Callable[[], float], rounds: int = ROUNDS) -> float:
    """Median of what ``act`` measures, in µs; the first tenth does not count."""
    times = [act() for _ in range(rounds)]
    return round(statistics.median(times[rounds // 10 :]) * 1e6, 2)


def main() -> None:
    """Measure and print."""
    take_gpu()
    dist.init_process_group("nccl", timeout=timedelta(seconds=60))
    tensor = torch.ones(1024, device="cuda")

    def calls() -> float:
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(CALLS):
            dist.all_reduce(tensor, async_op=True)
        return (time.perf_counter() - began_s) / CALLS

    def step() -> float:
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(CALLS):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        return time.perf_counter() - began_s

    calls()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(4):
            dist.all_reduce(tensor)

    def replay() -> float:
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        return time.perf_counter() - began_s

    found = {
        "call_us": median_us(calls),
        "step_us": median_us(step),
        "replay_us": median_us(replay),
    }
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
