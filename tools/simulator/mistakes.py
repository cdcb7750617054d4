"""Mistakes at one place of one rank's program, and the drawing of jobs in which they are made."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tools.simulator.case import Case, UnsuitableError
from tools.simulator.execute import RUN_AHEAD
from tools.simulator.more_shapes import MORE_LARGE, MORE_SHAPES
from tools.simulator.program import Job, Op
from tools.simulator.shapes import write

Mistake = Callable[[list[Op], int], None]
"""Changes a program at the place with the given index."""


def skip(program: list[Op], place: int) -> None:
    program.pop(place)


def add(program: list[Op], place: int) -> None:
    program.insert(
        place,
        replace(
            program[place], name="all_reduce", input_sizes=((3,),), output_sizes=((3,),),
            reduce_op="SUM", root=-1, is_async=False, dtype="Float",
            site=("log_once", "/srv/job/train.py", 99),
        ),
    )  # fmt: skip


def stop(program: list[Op], place: int) -> None:
    program.insert(place, Op("stop", site=("load_batch", "/srv/job/data.py", 41)))


def _change(**change: object) -> Mistake:
    def changed(program: list[Op], place: int) -> None:
        program[place] = replace(program[place], **change)  # type: ignore[arg-type]

    return changed


another_operation = _change(name="reduce", root=0)
another_shape = _change(input_sizes=((13,),), output_sizes=((13,),))
another_dtype = _change(dtype="Double")


def draw_job(
    number: int,
    seed: int,
    fault: str,
    case_of: Callable[[Job, random.Random, int, str], Case],
    tries: int,
) -> Case:
    """Draw jobs until ``case_of`` makes a case of one; deterministic for the same arguments.

    Raises
    ------
    UnsuitableError
        If that took more than ``tries`` jobs.
    """
    rng = random.Random(f"{seed}/{number}/{fault}")
    for _ in range(tries):
        shape = rng.choice(sorted(MORE_SHAPES))
        world = rng.choice([4, 8, 16] if shape not in MORE_LARGE else [8, 16])
        steps, blocking = rng.randrange(5, 9), rng.random() < 0.35
        job = write(shape, world, steps, blocking, rng, MORE_SHAPES)
        try:
            case = case_of(job, rng, number, fault)
        except UnsuitableError:
            continue
        case.at = [case.run.last + 600 + rng.uniform(0, 2) for _ in range(world)]
        if rng.random() < 0.25:
            case.keep = rng.randrange(RUN_AHEAD + 8, RUN_AHEAD + 40)
        return case
    raise UnsuitableError
