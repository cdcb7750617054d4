"""Logs of ranks that timed out over Gloo, each with its traceback."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from tests.trace.logs import trace_of

TIMED_OUT = (
    "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 900ms for recv "
    "operation to complete"
)
CLOSED = "RuntimeError: Application timeout caused pair closure"
C10D = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
REDUCE = (("/job/train.py", 40, "step"), (C10D, 3000, "all_reduce"))
BARRIER = (("/job/train.py", 52, "save"), (C10D, 5000, "barrier"))
MAKING = (("/job/train.py", 75, "groups"), (C10D, 5600, "new_group"))
STORE = (("/job/train.py", 20, "index"),)
KEY = "torch.distributed.DistStoreError: wait timeout after 900ms, keys: /default_pg/0//index"

Frames = tuple[tuple[str, int, str], ...]


def gave_up(rank: int, frames: Frames, error: str = TIMED_OUT, *, prefix: bool = True) -> str:
    """What Python prints for one rank."""
    lines = ["Traceback (most recent call last):"]
    lines += [f'  File "{file}", line {line}, in {name}' for file, line, name in frames]
    lines.append(error)
    return "".join(f"[rank{rank}]: {line}\n" if prefix else f"{line}\n" for line in lines)


def table(codes: dict[int, int]) -> str:
    """What torchrun prints at the end: which ranks failed and which it stopped."""
    text = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    text += "=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n"
    first, *later = enumerate(codes.items())
    for index, (rank, code) in (*later, first):
        text += "Root Cause (first observed failure):\n" if index == 0 else ""
        text += f"[{index}]:\n  time      : 2026-11-21_10:00:0{min(rank, 9)}\n  host      : node0\n"
        text += f"  rank      : {rank} (local_rank: {rank})\n"
        text += f"  exitcode  : {code} (pid: {700 + rank})\n  error_file: <N/A>\n"
        text += "  traceback : none\n"
    return text


def judged(
    waits: dict[int, Frames], world: int = 4, *, codes: dict[int, int] | None = None
) -> Diagnosis:
    told = {r: 1 if r in waits else -15 for r in range(world)} if codes is None else codes
    text = "".join(gave_up(rank, frames) for rank, frames in waits.items())
    return diagnose(trace_of(f"world_size={world}\n" + text + table(told)))


def in_finally(rank: int, first: Frames, error: str) -> str:
    """A rank that failed, and failed again in the cleanup that waits for all."""
    during = (
        f"\n[rank{rank}]: During handling of the above exception, another exception occurred:\n\n"
    )
    return gave_up(rank, first, error) + during + gave_up(rank, BARRIER, TIMED_OUT)
