"""Cases with two faults at once: one rank stops, and another one issues something that differs.

Both faults show: others wait for the rank that stopped, and of those who came to the operation that
differs, at least one on each side.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

from hangscope.diagnosis.model import Confidence, Diagnosis
from tools.simulator.case import Case, Host, Truth, UnsuitableError, healthy_hosts
from tools.simulator.execute import RUN_AHEAD, Machine, Run
from tools.simulator.more_shapes import MORE_LARGE, MORE_SHAPES
from tools.simulator.outcomes import EXACT, PART, UNDECIDED, WRONG
from tools.simulator.program import Job, Op
from tools.simulator.shapes import write

_TRIES = 400

_DIFFERENCES: dict[str, dict[str, object]] = {
    "stopped beside another operation": {"name": "reduce", "root": 0},
    "stopped beside another shape": {"input_sizes": ((13,),), "output_sizes": ((13,),)},
    "stopped beside another dtype": {"dtype": "Double"},
}

TWO_FAULTS = tuple(_DIFFERENCES)


def draw_two(number: int, seed: int, fault: str) -> Case:
    """Draw one case; deterministic for the same arguments.

    Raises
    ------
    UnsuitableError
        If no try gave a job in which both faults show.
    """
    rng = random.Random(f"{seed}/{number}/{fault}")
    for _ in range(_TRIES):
        shape = rng.choice(sorted(MORE_SHAPES))
        world = rng.choice([4, 8, 16] if shape not in MORE_LARGE else [8, 16])
        job = write(shape, world, rng.randrange(5, 9), rng.random() < 0.35, rng, MORE_SHAPES)
        try:
            case = _case(job, rng, number, fault)
        except UnsuitableError:
            continue
        case.at = [case.run.last + 600 + rng.uniform(0, 2) for _ in range(world)]
        if rng.random() < 0.25:
            case.keep = rng.randrange(RUN_AHEAD + 8, RUN_AHEAD + 40)
        return case
    raise UnsuitableError


def _case(job: Job, rng: random.Random, number: int, fault: str) -> Case:
    stopped, other = rng.sample(range(job.world), 2)
    program = job.programs[other]
    places = [
        i
        for i, op in enumerate(program)
        if op.step >= 2 and op.name == "all_reduce" and len(job.groups[op.group].ranks) > 1
    ]
    if not places:
        raise UnsuitableError
    place = rng.choice(places)
    odd = program[place] = replace(program[place], **_DIFFERENCES[fault])  # type: ignore[arg-type]
    near = [
        i
        for i, op in enumerate(job.programs[stopped])
        if abs(op.step - odd.step) <= 1 and op.kind != "wait"
    ]
    if not near:
        raise UnsuitableError
    stop = Op("stop", site=("load_batch", "/srv/job/data.py", 41))
    job.programs[stopped].insert(rng.choice(near), stop)
    run = Machine(job, rng).run()
    if not run.hung or not _both_show(run, odd, stopped):
        raise UnsuitableError
    members = job.groups[odd.group].ranks
    hosts = healthy_hosts(job)
    hosts[stopped] = Host(state="sleeping", function="load_batch")
    tie = frozenset(members) - {stopped} if len(set(members) - {stopped}) == 2 else frozenset()
    truth = Truth(fault, frozenset({"missing_rank"}), frozenset({stopped, other}), tie)
    return Case(number, run, truth, hosts)


def _both_show(run: Run, odd: Op, stopped: int) -> bool:
    """Whether the stopped rank waits for nothing and is waited for, and both sides have come."""
    if any(item.completed == inf for item in run.issued[stopped]):
        return False  # its device waits: nothing shows that its host will issue nothing more
    issued = [item for of_rank in run.issued for item in of_rank if item.op.kind == "coll"]
    places = {(item.op.group, item.collective_seq) for item in issued if item.op is odd}
    here = [item for item in issued if (item.op.group, item.collective_seq) in places]
    return len(here) > 1 and _is_awaited(run, stopped)


def _is_awaited(run: Run, stopped: int) -> bool:
    """Whether somebody stands in a collective that the rank has not reached."""
    reached = {
        (item.op.group, item.collective_seq)
        for item in run.issued[stopped]
        if item.op.kind == "coll"
    }
    return any(
        item.completed == inf
        and item.op.kind == "coll"
        and stopped in run.job.groups[item.op.group].ranks
        and (item.op.group, item.collective_seq) not in reached
        for of_rank in run.issued
        for item in of_rank
    )


def judge_two(case: Case, found: Diagnosis) -> tuple[str, int, bool]:
    """(outcome, number of innocents named, whether as certain) of one diagnosis.

    *In part*: only one of the two ranks is named, or both but not each by a finding of its own.
    """
    culprits, tie = case.truth.culprits, case.truth.ambiguous_with
    findings = [f for f in found.findings if f.culprits]
    named = {rank for f in findings for rank in f.culprits}
    sure = {r for f in findings if f.confidence is Confidence.CERTAIN for r in f.culprits}
    certain = bool(sure - culprits)
    open_ = {r for f in findings if f.confidence is Confidence.AMBIGUOUS for r in f.culprits}
    innocents = len(named - culprits - (tie & open_))
    if not named:
        return UNDECIDED, 0, certain
    if innocents:
        return (UNDECIDED if named - culprits <= open_ else WRONG), innocents, certain
    if len(findings) == 2 and named >= culprits:
        return EXACT, 0, certain
    return PART, 0, certain
