"""The faults of `tools.chaos`, and which of them a run gets: the truth behind its score."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass

KINDS = ("ddp", "fsdp", "tp", "pipeline")
MISMATCH = ("collective_mismatch", "shape_mismatch", "dtype_mismatch")
DRIFT = (*MISMATCH, "missing_rank", "deadlock_cycle", "rank_exited")
"""Verdicts that fit one missing or extra operation, depending on what comes next."""
DRIFT_OF_STEPS = (*DRIFT, "p2p_unmatched")
"""Likewise in a pipeline: between two collectives a rank then sends or receives for two steps."""

FAULTS: dict[str, tuple[str, ...]] = {
    "none": ("healthy",),
    "slow": ("healthy",),
    "pause": ("healthy",),
    "compute": ("healthy",),
    "kill": ("rank_crashed",),
    "segfault": ("rank_crashed",),
    "raise": ("rank_crashed",),
    "exit-3": ("rank_crashed",),
    "os-exit": ("rank_exited",),
    "early-end": ("rank_exited",),
    "reset": ("rank_crashed",),
    "memory": ("rank_crashed",),
    "abort": ("rank_crashed",),
    "term": ("rank_crashed",),
    "stop": ("missing_rank", "stuck_collective"),
    "sleep": ("missing_rank",),
    "spin": ("missing_rank",),
    "gil": ("missing_rank",),
    "lock": ("missing_rank",),
    "child": ("missing_rank",),
    "feeder": ("missing_rank",),
    "store": ("missing_rank",),
    "hook": ("missing_rank",),
    "late": ("missing_rank",),
    "early-eval": DRIFT_OF_STEPS,
    "guarded": DRIFT,
    "skip": DRIFT_OF_STEPS,
    "extra": DRIFT_OF_STEPS,
    "op": ("collective_mismatch",),
    "shape": ("shape_mismatch",),
    "dtype": ("dtype_mismatch",),
    "reduce-op": ("argument_mismatch",),
    "swap": ("deadlock_cycle", *MISMATCH),
    "skip-send": ("p2p_unmatched", "missing_rank", "deadlock_cycle", "collective_mismatch"),
    "skip-recv": ("p2p_unmatched", "missing_rank", "deadlock_cycle", "collective_mismatch"),
    "kernel": ("stuck_collective", "missing_rank"),
    "replay": ("missing_rank",),
    "oom": ("rank_crashed",),
}
"""Map from a fault to the verdicts that are right for it."""
ON_DEVICES = ("kernel", "replay", "oom")
"""Faults that only a device can have."""
HEALTHY = ("none", "slow", "pause", "compute")
OUTSIDE = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
CALLS = ("skip", "extra", "op", "shape", "dtype", "swap", "reduce-op", "guarded", "early-eval")
ONLY = {"skip-send": ("pipeline",), "skip-recv": ("pipeline",), "hook": ("ddp",)}
NOT = {"swap": ("pipeline",), "early-end": ()}


@dataclass(frozen=True, slots=True)
class Draw:
    """The truth of one run."""

    number: int
    kind: str
    world: int
    fault: str
    rank: int
    step: int
    point: int
    after_s: float
    """For signals from outside: delay after the first collective."""
    kill_on_failure: bool


def draw(number: int, seed: int, device: str = "cpu") -> Draw:
    """Draw one run; deterministic for the same arguments."""
    dice = random.Random(f"{seed}/{number}")
    kind = dice.choice(KINDS)
    fault = dice.choice(
        [
            name
            for name in FAULTS
            for _ in range(3 if name == "none" else 1)
            if kind in ONLY.get(name, KINDS)
            and kind not in NOT.get(name, ())
            and (device != "cpu" or name not in ON_DEVICES)
        ]
    )
    sizes = {"ddp": (2, 3, 4, 6), "fsdp": (2, 4, 5), "tp": (4, 6, 8), "pipeline": (3, 4, 6)}
    world = dice.choice(sizes[kind])
    rank = dice.randrange(world)
    if fault == "skip-send":
        rank = dice.randrange(world - 1)
    if fault == "skip-recv":
        rank = dice.randrange(1, world)
    return Draw(
        number=number,
        kind=kind,
        world=world,
        fault=fault,
        rank=rank,
        step=dice.randrange(1, 12),
        point=dice.randrange(0, 3) if fault in CALLS else dice.randrange(0, 4),
        after_s=dice.uniform(0.1, 1.5),
        kill_on_failure=dice.random() < 0.6,
    )
