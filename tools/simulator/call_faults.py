"""Faults of calls: skipped, added, changed or reordered; and devices that do not finish."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

from tools.simulator.case import Host, Made, Truth, UnsuitableError, healthy_hosts
from tools.simulator.execute import Machine
from tools.simulator.program import Job, Op

MISMATCH = frozenset(
    {"collective_mismatch", "shape_mismatch", "dtype_mismatch", "argument_mismatch"}
)

DIVERGED = MISMATCH | {"missing_rank", "deadlock_cycle", "p2p_unmatched"}
"""Verdicts that fit a skipped or added operation, depending on what came next."""


def _op_indices(job: Job, rank: int, kinds: tuple[str, ...] = ("coll",)) -> list[int]:
    program = job.programs[rank]
    return [i for i, op in enumerate(program) if op.kind in kinds and op.step >= 2]


def _pick(job: Job, rng: random.Random, rank: int, **want: object) -> int:
    found = [
        i
        for i in _op_indices(job, rank)
        if all(getattr(job.programs[rank][i], k) == v for k, v in want.items())
        and len(job.groups[job.programs[rank][i].group].ranks) > 1
    ]
    if not found:
        raise UnsuitableError
    return rng.choice(found)


def _ranks_sharing(job: Job, group: int) -> frozenset[int]:
    return frozenset(job.groups[group].ranks)


def _tie(job: Job, group: int) -> frozenset[int]:
    ranks = _ranks_sharing(job, group)
    return ranks if len(ranks) == 2 else frozenset()


def extra(job: Job, rng: random.Random) -> Made:
    rank = rng.randrange(job.world)
    index = _pick(job, rng, rank)
    like = job.programs[rank][index]
    added = replace(
        like, name="all_reduce", input_sizes=((3,),), output_sizes=((3,),), reduce_op="SUM",
        root=-1, is_async=False, dtype="Float", site=("log_once", "/srv/job/train.py", 99),
    )  # fmt: skip
    job.programs[rank].insert(index, added)
    run = Machine(job, rng).run()
    return (
        run,
        Truth("extra collective", DIVERGED, frozenset({rank}), _tie(job, like.group)),
        healthy_hosts(job),
        frozenset(),
    )


def skipped(job: Job, rng: random.Random) -> Made:
    rank = rng.randrange(job.world)
    index = _pick(job, rng, rank)
    op = job.programs[rank].pop(index)
    run = Machine(job, rng).run()
    return (
        run,
        Truth("skipped collective", DIVERGED, frozenset({rank}), _tie(job, op.group)),
        healthy_hosts(job),
        frozenset(),
    )


def _changed(job: Job, rng: random.Random, fault: str, verdict: str, **change: object) -> Made:
    rank = rng.randrange(job.world)
    index = _pick(job, rng, rank, name="all_reduce")
    op = job.programs[rank][index]
    job.programs[rank][index] = replace(op, **change)  # type: ignore[arg-type]
    run = Machine(job, rng).run()
    truth = Truth(fault, frozenset({verdict}), frozenset({rank}), _tie(job, op.group))
    return run, truth, healthy_hosts(job), frozenset()


def different_op(job: Job, rng: random.Random) -> Made:
    return _changed(job, rng, "different operation", "collective_mismatch", name="reduce", root=0)


def different_shape(job: Job, rng: random.Random) -> Made:
    return _changed(
        job, rng, "different shape", "shape_mismatch", input_sizes=((13,),), output_sizes=((13,),)
    )


def different_dtype(job: Job, rng: random.Random) -> Made:
    return _changed(job, rng, "different dtype", "dtype_mismatch", dtype="Double")


def different_root(job: Job, rng: random.Random) -> Made:
    """One rank uses another root; dumps do not contain roots."""
    rank = rng.randrange(job.world)
    rooted = [
        i
        for i in _op_indices(job, rank)
        if job.programs[rank][i].name in ("broadcast", "gather", "reduce")
        and len(job.groups[job.programs[rank][i].group].ranks) > 1
    ]
    if not rooted:
        raise UnsuitableError
    index = rng.choice(rooted)
    op = job.programs[rank][index]
    other = rng.choice([r for r in job.groups[op.group].ranks if r != op.root])
    outputs = op.output_sizes
    if op.name == "gather":
        outputs = op.input_sizes * len(job.groups[op.group].ranks) if rank == other else ()
    job.programs[rank][index] = replace(op, root=other, output_sizes=outputs)
    run = Machine(job, rng).run()
    truth = Truth(
        "different root", frozenset({"argument_mismatch"}), frozenset({rank}), _tie(job, op.group)
    )
    return run, truth, healthy_hosts(job), frozenset()


def different_reduce_op(job: Job, rng: random.Random) -> Made:
    """One rank takes the maximum where the others sum: nothing hangs, but all results are wrong."""
    rank = rng.randrange(job.world)
    index = _pick(job, rng, rank, name="all_reduce")
    op = job.programs[rank][index]
    job.programs[rank][index] = replace(op, reduce_op="MAX")
    run = Machine(job, rng).run()
    hosts = [
        Host(state="gone", alive=False, exit="clean", exit_at=run.host_end[r])
        for r in range(job.world)
    ]
    truth = Truth(
        "different reduce op",
        frozenset({"argument_mismatch"}),
        frozenset({rank}),
        _tie(job, op.group),
    )
    return run, truth, hosts, frozenset()


def opposite_order(job: Job, rng: random.Random) -> Made:
    """One rank uses two groups in the opposite order of its fellow members."""
    rank = rng.randrange(job.world)
    program = job.programs[rank]
    pairs = []
    indices = _op_indices(job, rank)
    for a, b in pairwise(indices):
        x, y = program[a], program[b]
        shared = _ranks_sharing(job, x.group) & _ranks_sharing(job, y.group)
        if x.group != y.group and not x.is_async and not y.is_async and len(shared) > 2:
            pairs.append((a, b))
    if not pairs:
        raise UnsuitableError
    a, b = rng.choice(pairs)
    program[a], program[b] = program[b], program[a]
    run = Machine(job, rng).run()
    if not run.hung:
        raise UnsuitableError
    return (
        run,
        Truth("opposite order of two groups", frozenset({"deadlock_cycle"}), frozenset({rank})),
        healthy_hosts(job),
        frozenset(),
    )


def p2p_unmatched(job: Job, rng: random.Random) -> Made:
    return _without_half(job, rng, "send", "unmatched send")


def unreceived(job: Job, rng: random.Random) -> Made:
    """One rank leaves a receive out; on a device, what it receives later comes one too early."""
    return _without_half(job, rng, "recv", "unmatched receive")


def _without_half(job: Job, rng: random.Random, kind: str, fault: str) -> Made:
    rank = rng.randrange(job.world)
    halves = _op_indices(job, rank, (kind,))
    if not halves:
        raise UnsuitableError
    job.programs[rank].pop(rng.choice(halves))
    run = Machine(job, rng).run()
    if not run.hung:
        raise UnsuitableError
    verdicts = {"p2p_unmatched"}
    if all(item.completed < float("inf") for item in run.issued[rank]):
        verdicts.add("missing_rank")  # it waits for nothing, so it may as well be in user code
    return (
        run,
        Truth(fault, frozenset(verdicts), frozenset({rank})),
        healthy_hosts(job),
        frozenset(),
    )


def recv_circle(job: Job, rng: random.Random) -> Made:
    groups = [i for i, g in enumerate(job.groups) if 3 <= len(g.ranks) <= 8]
    if not groups:
        raise UnsuitableError
    group = rng.choice(groups)
    ranks = job.groups[group].ranks
    last = min(max(op.step for op in job.programs[r]) for r in ranks)
    step = rng.randrange(2, last + 1)
    for position, rank in enumerate(ranks):
        index = next(i for i, op in enumerate(job.programs[rank]) if op.step >= step)
        peer = ranks[(position + 1) % len(ranks)]
        half = Op(
            "recv", group, "recv", ((9,),), ((9,),), peer=peer,
            site=("exchange", "/srv/job/ring.py", 15), step=step,
        )  # fmt: skip
        job.programs[rank].insert(index, half)
    run = Machine(job, rng).run()
    return (
        run,
        Truth("circle of receives", frozenset({"deadlock_cycle"}), frozenset(ranks)),
        healthy_hosts(job),
        frozenset(),
    )


def device_stuck(job: Job, rng: random.Random) -> Made:
    rank = rng.randrange(job.world)
    issued = [
        i
        for i, op in enumerate(_issue_order(job, rank))
        if op.kind == "coll"
        and op.step >= 2
        and len(job.groups[op.group].ranks) > 2
        and op.name not in ("broadcast", "reduce", "gather", "scatter")
    ]
    if not issued:
        raise UnsuitableError
    index = rng.choice(issued)
    run = Machine(job, rng, device_stuck={(rank, index)}).run()
    return (
        run,
        Truth("device stuck", frozenset({"stuck_collective"}), frozenset({rank})),
        healthy_hosts(job),
        frozenset(),
    )


def _issue_order(job: Job, rank: int) -> list[Op]:
    """The rank's operations in issue order, batch members before their batch."""
    order: list[Op] = []
    for op in job.programs[rank]:
        if op.kind in ("coll", "send", "recv", "batch"):
            order += [*op.legs, op]
    return order


def network_stuck(job: Job, rng: random.Random) -> Made:
    clean = Machine(job, rng).run()
    places = {
        (i.op.group, i.collective_seq)
        for issued in clean.issued
        for i in issued
        if i.op.kind == "coll" and i.op.step >= 2 and len(job.groups[i.op.group].ranks) > 1
    }
    run = Machine(job, rng, network_stuck=rng.choice(sorted(places))).run()
    return (
        run,
        Truth("network stuck", frozenset({"stuck_collective"}), frozenset()),
        healthy_hosts(job),
        frozenset(),
    )
