"""Cases in which several ranks make the same mistake: two or three of them, a node, a group, a row.

A rank's mistake is that of `tools.simulator.call_faults`; here all the chosen ranks make it at the
same line, each in its own program.
"""

from __future__ import annotations

import random

from hangscope.diagnosis.model import Confidence, Diagnosis
from tools.simulator.case import Case, Host, Truth, UnsuitableError, healthy_hosts
from tools.simulator.execute import Machine
from tools.simulator.mistakes import (
    Mistake,
    add,
    another_dtype,
    another_operation,
    another_shape,
    draw_job,
    skip,
    stop,
)
from tools.simulator.outcomes import EXACT, PART, UNDECIDED, WRONG
from tools.simulator.program import Job, Op

_TRIES = 200


_COLLECTIVE, _ALL_REDUCE, _PAIR = "a collective", "an all-reduce", "a send, receive or batch"

MISTAKES: dict[str, tuple[str, Mistake]] = {
    "several skip": (_COLLECTIVE, skip),
    "several add": (_COLLECTIVE, add),
    "several issue another operation": (_ALL_REDUCE, another_operation),
    "several pass another shape": (_ALL_REDUCE, another_shape),
    "several pass another dtype": (_ALL_REDUCE, another_dtype),
    "several stop": (_COLLECTIVE, stop),
    "several skip a half": (_PAIR, skip),
}


def draw_several(number: int, seed: int, fault: str) -> Case:
    """Draw one case; deterministic for the same arguments.

    Raises
    ------
    UnsuitableError
        If no try gave a job that hangs.
    """
    return draw_job(number, seed, fault, _case, _TRIES)


def _case(job: Job, rng: random.Random, number: int, fault: str) -> Case:
    culprits = _choose(job, rng)
    kind, mistake = MISTAKES[fault]
    first = min(culprits)
    program = job.programs[first]
    places = [i for i, op in enumerate(program) if op.step >= 2 and _is(kind, job, op)]
    if not places:
        raise UnsuitableError
    place = rng.choice(places)
    like, nth = program[place], _number_among_alike(job, first, place)
    places_of = {rank: _nth_alike(job, rank, like, nth) for rank in culprits}
    ties: set[int] = set()
    for rank, index in places_of.items():
        members = set(job.groups[job.programs[rank][index].group].ranks)
        if 2 * len(members & culprits) >= len(members):
            ties |= members
        mistake(job.programs[rank], index)
    run = Machine(job, rng).run()
    if not run.hung or not run.somebody_waits:
        raise UnsuitableError
    hosts = healthy_hosts(job)
    if mistake is stop:
        for rank in culprits:
            hosts[rank] = Host(state="sleeping", function="load_batch")
    truth = Truth(fault, frozenset(), frozenset(culprits), frozenset(ties))
    return Case(number, run, truth, hosts)


def _choose(job: Job, rng: random.Random) -> set[int]:
    """Fewer than half of all ranks, or two: a larger side would be right."""
    ranks = range(job.world)
    groups = [g for g in job.groups if 1 < len(g.ranks) < job.world]
    how = rng.choice(["two", "three", "node", "group", "row"])
    if how in ("two", "three"):
        chosen = set(rng.sample(ranks, 2 if how == "two" else 3))
    elif how == "node":
        size = max(2, job.world // 4)
        begin = rng.randrange(job.world // size) * size
        chosen = set(range(begin, begin + size))
    elif not groups:
        raise UnsuitableError
    elif how == "group":
        chosen = set(rng.choice(groups).ranks)
    else:
        one = rng.choice(groups)
        alike = [g for g in groups if g.desc == one.desc and len(g.ranks) == len(one.ranks)]
        position = rng.randrange(len(one.ranks))
        chosen = {g.ranks[position] for g in alike}
    if len(chosen) < 2 or (2 * len(chosen) >= job.world and len(chosen) > 2):
        raise UnsuitableError
    return chosen


def _is(kind: str, job: Job, op: Op) -> bool:
    if kind == _PAIR:
        return op.kind in ("send", "recv", "batch")
    shared = op.kind == "coll" and len(job.groups[op.group].ranks) > 1
    return shared and (kind == _COLLECTIVE or op.name == "all_reduce")


def _are_alike(job: Job, one: Op, other: Op) -> bool:
    """Whether two operations are one line of the program in the same step."""
    return (one.step, one.kind, one.name, one.site) == (
        other.step, other.kind, other.name, other.site,
    ) and job.groups[one.group].desc == job.groups[other.group].desc  # fmt: skip


def _number_among_alike(job: Job, rank: int, place: int) -> int:
    program = job.programs[rank]
    return sum(op.group >= 0 and _are_alike(job, op, program[place]) for op in program[:place])


def _nth_alike(job: Job, rank: int, like: Op, nth: int) -> int:
    found = [
        i for i, op in enumerate(job.programs[rank]) if op.group >= 0 and _are_alike(job, op, like)
    ]
    if nth >= len(found):
        raise UnsuitableError
    return found[nth]


def judge_several(case: Case, found: Diagnosis) -> tuple[str, int, bool]:
    """(outcome, number of innocents named, whether as certain) of one diagnosis.

    *In part*: only ranks at fault are named, but not all of them. Where at least half of a group is
    at fault, its sides may be taken for each other; an answer within its members is not wrong.
    """
    truth = case.truth
    named = {rank for finding in found.findings for rank in finding.culprits}
    sure = {
        rank
        for finding in found.findings
        if finding.confidence is Confidence.CERTAIN
        for rank in finding.culprits
    }
    ambiguous = found.confidence is Confidence.AMBIGUOUS
    innocents = len(named - truth.culprits - truth.ambiguous_with)
    certain = bool(sure - truth.culprits - truth.ambiguous_with)
    if not named:
        return UNDECIDED, 0, certain
    if not ambiguous and named <= truth.culprits:
        return (EXACT if named == truth.culprits else PART), 0, certain
    if ambiguous and set(found.culprits) & truth.culprits:
        return UNDECIDED, 0, certain
    if named <= truth.culprits | truth.ambiguous_with:
        return UNDECIDED, 0, certain
    return WRONG, innocents, certain
