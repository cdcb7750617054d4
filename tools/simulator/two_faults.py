"""Cases with two faults at once: one rank stops, and another one issues something that differs.

Both faults show: others wait for the rank that stopped, and of those who came to the operation that
differs, at least one on each side.
"""

from __future__ import annotations

import random
from math import inf

from hangscope.diagnosis.model import Confidence, Diagnosis
from tools.simulator.case import Case, Host, Truth, UnsuitableError, healthy_hosts
from tools.simulator.execute import Machine, Run
from tools.simulator.mistakes import (
    Mistake,
    another_dtype,
    another_operation,
    another_shape,
    draw_job,
    stop,
)
from tools.simulator.outcomes import EXACT, PART, UNDECIDED, WRONG
from tools.simulator.program import Job, Op

_TRIES = 400

_DIFFERENCES: dict[str, Mistake] = {
    "stopped beside another operation": another_operation,
    "stopped beside another shape": another_shape,
    "stopped beside another dtype": another_dtype,
}

TWO_FAULTS = tuple(_DIFFERENCES)


def draw_two(number: int, seed: int, fault: str) -> Case:
    """Draw one case; deterministic for the same arguments.

    Raises
    ------
    UnsuitableError
        If no try gave a job in which both faults show.
    """
    return draw_job(number, seed, fault, _case, _TRIES)


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
    _DIFFERENCES[fault](program, place)
    odd = program[place]
    near = [
        i
        for i, op in enumerate(job.programs[stopped])
        if abs(op.step - odd.step) <= 1 and op.kind != "wait"
    ]
    if not near:
        raise UnsuitableError
    stop(job.programs[stopped], rng.choice(near))
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
