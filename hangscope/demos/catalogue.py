"""The faults ``hangscope demo`` can inject, and the verdict each must get."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demo:
    """One fault. ``hangs``: the job would be stuck for ever, so the monitor must report it."""

    name: str
    story: str
    verdict: str
    culprits: tuple[int, ...]
    playbook: str = ""
    hangs: bool = True
    line: str = ""
    """Text of the source line that the report must point to."""


DEMOS = (
    Demo(
        "rank-guarded",
        "rank 0 alone calls barrier under `if rank == 0` when it saves a checkpoint",
        "collective_mismatch",
        (0,),
        "D21",
        line="barrier",
    ),
    Demo(
        "fewer-batches",
        "rank 1's shard is shorter, so it leaves the epoch and finishes while the others train",
        "rank_exited",
        (1,),
        "D9",
        hangs=False,
    ),
    Demo(
        "asleep-in-loader",
        "rank 2's data loader waits for a file that never comes",
        "missing_rank",
        (2,),
        "D22",
        line="time.sleep",
    ),
    Demo(
        "endless-loop",
        "rank 1 spins for ever in a Python loop while tokenizing",
        "missing_rank",
        (1,),
        line="while",
    ),
    Demo(
        "gil-held",
        "rank 3 sits in a C function that never gives the GIL back",
        "missing_rank",
        (3,),
        line="pthread_mutex_lock",
    ),
    Demo("sigkill", "rank 2 is killed with SIGKILL", "rank_crashed", (2,), "D20", hangs=False),
    Demo("sigstop", "rank 1 is stopped with SIGSTOP", "missing_rank", (1,)),
    Demo(
        "exception",
        "rank 3 raises ValueError on a bad sample",
        "rank_crashed",
        (3,),
        "D20",
        hangs=False,
        line="raise ValueError",
    ),
    Demo("os-exit", "rank 0 leaves through os._exit(0)", "rank_exited", (0,), hangs=False),
    Demo(
        "wrong-op",
        "rank 2 calls broadcast where the others call all_reduce",
        "collective_mismatch",
        (2,),
        "D19",
        line="broadcast",
    ),
    Demo(
        "wrong-shape",
        "rank 1 reduces a tensor of another size",
        "shape_mismatch",
        (1,),
        "D19",
    ),
    Demo(
        "crossed-groups",
        "rank 2 uses two groups in the opposite order",
        "deadlock_cycle",
        (2,),
        "D19",
    ),
    Demo(
        "recv-circle",
        "every rank receives from its neighbour before it sends",
        "deadlock_cycle",
        (0, 1, 2, 3),
    ),
    Demo(
        "no-init",
        "rank 3 never reaches init_process_group: it is still preparing its data",
        "missing_rank",
        (3,),
        line="time.sleep",
    ),
    Demo(
        "unused-parameters",
        "rank 2 skips a branch of the model, so its gradients never become ready",
        "rank_crashed",
        (2,),
        "D8",
        hangs=False,
    ),
    Demo("slow", "rank 1 is merely slow: every step takes it a second", "healthy", (), hangs=False),
    Demo("healthy", "no fault at all", "healthy", (), hangs=False),
)

BY_NAME = {demo.name: demo for demo in DEMOS}
DEFAULT = "asleep-in-loader"
