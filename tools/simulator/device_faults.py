"""Faults of processes whose hosts run ahead of their devices, with operations in flight."""

from __future__ import annotations

import random

from tools.simulator.case import Host, Made, Truth, UnsuitableError, healthy_hosts
from tools.simulator.execute import Machine, Run
from tools.simulator.program import Job, Op

_SYNCHRONISING = ("step", "/srv/job/train.py", 68)


def _broken_in_flight(job: Job, rng: random.Random) -> tuple[Run, int]:
    """A run in which one process passes nothing on from some collective on."""
    if job.blocking:
        raise UnsuitableError
    rank = rng.randrange(job.world)
    issued = [op for op in job.programs[rank] if op.kind in ("coll", "send", "recv", "batch")]
    chosen = [
        i
        for i, op in enumerate(issued)
        if op.kind == "coll" and op.step >= 2 and len(job.groups[op.group].ranks) > 1
    ]
    if not chosen or any(op.legs for op in issued):
        raise UnsuitableError
    run = Machine(job, rng, breaks=(rank, rng.choice(chosen))).run()
    if rank not in run.died:
        raise UnsuitableError
    return run, rank


def died_in_flight(job: Job, rng: random.Random) -> Made:
    """A process is killed, or fails, while its device and those of others are at work."""
    run, rank = _broken_in_flight(job, rng)
    hosts = healthy_hosts(job)
    how = rng.choice(["exception", "signal", "code"])
    hosts[rank] = Host(
        state="gone", alive=False, exit=how, exit_at=run.died[rank],
        exception="ValueError: bad sample" if how == "exception" else "",
        signal=rng.choice([9, 11]) if how == "signal" else None,
    )  # fmt: skip
    truth = Truth("died in flight", frozenset({"rank_crashed"}), frozenset({rank}))
    return run, truth, hosts, frozenset({rank})


def exited_in_flight(job: Job, rng: random.Random) -> Made:
    """A process exits cleanly without waiting for what it has issued."""
    run, rank = _broken_in_flight(job, rng)
    hosts = healthy_hosts(job)
    hosts[rank] = Host(state="gone", alive=False, exit="clean", exit_at=run.died[rank])
    truth = Truth("exited in flight", frozenset({"rank_exited"}), frozenset({rank}))
    return run, truth, hosts, frozenset({rank})


def stopped_in_flight(job: Job, rng: random.Random) -> Made:
    """A process is stopped by a signal: neither its host nor its relays go on."""
    run, rank = _broken_in_flight(job, rng)
    hosts = healthy_hosts(job)
    hosts[rank] = Host(state="stopped", function="step", beat_at=run.died[rank])
    verdicts = frozenset({"missing_rank", "stuck_collective", "p2p_unmatched"})
    return run, Truth("stopped in flight", verdicts, frozenset({rank})), hosts, frozenset()


def failed_inside(job: Job, rng: random.Random) -> Made:
    """A host and its device fail inside a collective; all other hosts run ahead of it."""
    if job.blocking:
        raise UnsuitableError
    rank = rng.randrange(job.world)
    lines = [
        i
        for i, op in enumerate(job.programs[rank])
        if op.kind == "coll" and op.step >= 3 and len(job.groups[op.group].ranks) > 2
    ]
    if not lines:
        raise UnsuitableError
    line = rng.choice(lines)
    op = job.programs[rank][line]
    number = sum(o.kind == "coll" and o.group == op.group for o in job.programs[rank][: line + 1])
    job.programs[rank].insert(line + 1, Op("stop", site=op.site))
    run = Machine(job, rng, network_stuck=(op.group, number)).run()
    ahead = [
        r
        for r in job.groups[op.group].ranks
        if any(i.op.group == op.group and i.collective_seq == number for i in run.issued[r])
        and (run.issued[r][-1].op.group, run.issued[r][-1].collective_seq) != (op.group, number)
    ]
    if rank in ahead or len(ahead) < len(job.groups[op.group].ranks) - 1:
        raise UnsuitableError
    hosts = healthy_hosts(job)
    hosts[rank] = Host(function="")
    verdicts = frozenset({"stuck_collective", "missing_rank"})
    return run, Truth("failed inside", verdicts, frozenset({rank})), hosts, frozenset()


def missed_replay(job: Job, rng: random.Random) -> Made:
    """All steps from some on are replays of a graph, which leave no record; one rank replays one
    less, and the others wait for their devices."""
    rank = rng.randrange(job.world)
    step = rng.randrange(3, max(op.step for op in job.programs[0]) + 1)
    for other in range(job.world):
        head = [op for op in job.programs[other] if op.step < step]
        job.programs[other] = [*head, Op("wait"), Op("stop", site=_SYNCHRONISING)]
    run = Machine(job, rng).run()
    hosts = healthy_hosts(job)
    hosts[rank] = Host(function="load_batch")
    truth = Truth("missed replay", frozenset({"missing_rank"}), frozenset({rank}))
    return run, truth, hosts, frozenset()


IN_FLIGHT = (died_in_flight, exited_in_flight, stopped_in_flight, failed_inside, missed_replay)
