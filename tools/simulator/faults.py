"""All faults by name, and cases drawn with them."""

from __future__ import annotations

import random

from tools.simulator.call_faults import (
    device_stuck,
    different_dtype,
    different_op,
    different_reduce_op,
    different_root,
    different_shape,
    extra,
    network_stuck,
    opposite_order,
    p2p_unmatched,
    recv_circle,
    skipped,
    unreceived,
)
from tools.simulator.case import Case, Fault, UnsuitableError
from tools.simulator.device_faults import IN_FLIGHT
from tools.simulator.execute import RUN_AHEAD
from tools.simulator.process_faults import (
    clean_exit,
    crashed,
    fewer_batches,
    finished,
    host_stuck,
    innocent_lost,
    killed,
    lost,
    moving,
    quiescent,
    slow,
    torn_down,
)
from tools.simulator.shapes import LARGE, SHAPES, write

FAULTS: dict[str, Fault] = {
    f.__name__: f
    for f in (
        host_stuck, crashed, torn_down, clean_exit, fewer_batches, lost, innocent_lost, extra,
        skipped, different_op, different_shape, different_dtype, opposite_order, p2p_unmatched,
        recv_circle, device_stuck, network_stuck, quiescent, finished, moving, slow, killed,
        different_root, different_reduce_op,
    )
}  # fmt: skip

ON_REQUEST: dict[str, Fault] = {f.__name__: f for f in (unreceived, *IN_FLIGHT)}
"""Drawn only if asked for by name: others would change the cases of earlier seeds."""

NEEDS_HOST = frozenset(
    {
        "crashed",
        "torn_down",
        "clean_exit",
        "finished",
        "moving",
        "slow",
        "killed",
        "different_reduce_op",
        "died_in_flight",
        "exited_in_flight",
        "stopped_in_flight",
        "missed_replay",
    }
)
"""Faults that only an observer on the host can tell; dumps alone do not hold the evidence."""

ENDS_WELL = frozenset({"finished", "quiescent", "different_reduce_op", "missed_replay"})

MID_RUN = frozenset({"moving", "slow", "killed"})

IN_DUMPS = frozenset({"crashed", "clean_exit", "moving", "died_in_flight", "exited_in_flight"})
"""Of `NEEDS_HOST` those that leave a trace in dumps alone as well."""


def draw(number: int, seed: int, fault: str, shape: str | None = None) -> Case:
    """Draw one case; deterministic for the same arguments.

    Raises
    ------
    UnsuitableError
        If after some tries no job of this shape is affected by the fault.
    """
    rng = random.Random(f"{seed}/{number}/{fault}")
    for _ in range(40):
        chosen = shape or rng.choice(sorted(SHAPES))
        world = rng.choice([4, 8, 16] if chosen not in LARGE else [8, 16])
        blocking = rng.random() < 0.35
        steps = rng.randrange(8, 14) if chosen == "ddp" else rng.randrange(5, 9)
        job = write(chosen, world, steps, blocking, rng)
        try:
            run, truth, hosts, missing = (FAULTS | ON_REQUEST)[fault](job, rng)
        except UnsuitableError:
            continue
        case = Case(number, run, truth, hosts, missing)
        if fault in MID_RUN:
            middle = run.last * rng.uniform(0.4, 0.8)
            skew = 0.0 if fault == "killed" else 0.01
            case.at = [middle + rng.uniform(0, skew) for _ in range(world)]
            for host in hosts:
                host.exit_at = middle
        else:
            if not run.hung and fault not in ENDS_WELL:
                continue
            if fault not in ENDS_WELL and not run.somebody_waits:
                continue
            case.at = [run.last + 600 + rng.uniform(0, 2) for _ in range(world)]
        if rng.random() < 0.3 and fault != "different_reduce_op":  # would lose its only evidence
            case.keep = rng.randrange(RUN_AHEAD + 8, RUN_AHEAD + 40)
        return case
    raise UnsuitableError
