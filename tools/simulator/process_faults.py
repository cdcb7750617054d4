"""Faults of processes: stuck, ended, slow, or lost without a dump; and healthy jobs."""

from __future__ import annotations

import random
from dataclasses import replace

from tools.simulator.case import Host, Made, Truth, healthy_hosts
from tools.simulator.execute import Machine
from tools.simulator.program import Job, Op


def _stop(job: Job, rng: random.Random, kind: str) -> tuple[int, int]:
    rank = rng.randrange(job.world)
    lines = [i for i, op in enumerate(job.programs[rank]) if op.step >= 2 and op.kind != "wait"]
    index = rng.choice(lines)
    job.programs[rank].insert(index, Op(kind, site=("load_batch", "/srv/job/data.py", 41)))
    return rank, index


def host_stuck(job: Job, rng: random.Random) -> Made:
    rank, _ = _stop(job, rng, "stop")
    run = Machine(job, rng).run()
    hosts = healthy_hosts(job)
    hosts[rank] = Host(
        state=rng.choice(["sleeping", "running", "stopped", "gil-held"]), function="load_batch"
    )
    verdicts = frozenset({"missing_rank", "p2p_unmatched"})
    return run, Truth("host stuck", verdicts, frozenset({rank})), hosts, frozenset()


def crashed(job: Job, rng: random.Random) -> Made:
    rank, _ = _stop(job, rng, "die")
    run = Machine(job, rng).run()
    hosts = healthy_hosts(job)
    how = rng.choice(["exception", "signal", "code"])
    hosts[rank] = Host(
        state="gone", alive=False, exit=how, exit_at=run.died.get(rank, 0.0),
        exception="ValueError: bad sample" if how == "exception" else "",
        signal=rng.choice([9, 11]) if how == "signal" else None,
    )  # fmt: skip
    return (
        run,
        Truth("crash", frozenset({"rank_crashed"}), frozenset({rank})),
        hosts,
        frozenset({rank}),
    )


def torn_down(job: Job, rng: random.Random) -> Made:
    """A crash, after which the others fail in communication or are signalled to stop."""
    run, truth, hosts, _ = crashed(job, rng)
    (culprit,) = truth.culprits
    end = run.died.get(culprit, 0.0) + 0.5
    for rank, host in enumerate(hosts):
        if rank == culprit:
            continue
        host.alive = False
        host.state = "gone"
        host.exit_at = end + rng.uniform(0, 0.5)
        if rng.random() < 0.5:
            host.exit = "exception"
            host.exception = (
                "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] "
                "Connection closed by peer [10.0.0.1]:4711"
            )
        else:
            host.exit, host.signal, host.by_launcher = "signal", 15, True
    return run, replace(truth, fault="crash, others torn down"), hosts, frozenset()


def clean_exit(job: Job, rng: random.Random) -> Made:
    rank = rng.randrange(job.world)
    step = rng.randrange(3, max(op.step for op in job.programs[rank]) + 1)
    job.programs[rank] = [op for op in job.programs[rank] if op.step < step] + [Op("end")]
    run = Machine(job, rng).run()
    hosts = healthy_hosts(job)
    hosts[rank] = Host(state="gone", alive=False, exit="clean", exit_at=run.host_end[rank])
    return (
        run,
        Truth("clean exit", frozenset({"rank_exited"}), frozenset({rank})),
        hosts,
        frozenset({rank}),
    )


def fewer_batches(job: Job, rng: random.Random) -> Made:
    """The rank finished early and waits in its teardown."""
    run, truth, hosts, _ = clean_exit(job, rng)
    (rank,) = truth.culprits
    hosts[rank] = Host(state="sleeping", function="cleanup", finalized=True)
    verdicts = frozenset({"missing_rank", "rank_exited", "p2p_unmatched"})
    return run, replace(truth, fault="fewer batches", verdicts=verdicts), hosts, frozenset()


def lost(job: Job, rng: random.Random) -> Made:
    rank, _ = _stop(job, rng, "stop")
    run = Machine(job, rng).run()
    return (
        run,
        Truth("dump lost", frozenset({"rank_lost"}), frozenset({rank})),
        healthy_hosts(job),
        frozenset({rank}),
    )


def innocent_lost(job: Job, rng: random.Random) -> Made:
    """A rank is stuck, and another rank's dump is missing."""
    run, truth, hosts, _ = host_stuck(job, rng)
    other = rng.choice([r for r in range(job.world) if r not in truth.culprits])
    return (
        run,
        replace(truth, fault="stuck, a dump of another is missing"),
        hosts,
        frozenset({other}),
    )


def quiescent(job: Job, rng: random.Random) -> Made:
    step = rng.randrange(3, max(op.step for op in job.programs[0]) + 1)
    for rank in range(job.world):
        head = [op for op in job.programs[rank] if op.step < step]
        stop = Op("stop", site=("evaluate", "/srv/job/eval.py", 5))
        job.programs[rank] = [*head, Op("wait"), stop]
    run = Machine(job, rng).run()
    hosts = [Host(function="evaluate") for _ in range(job.world)]
    return run, Truth("quiescent", frozenset({"quiescent"}), frozenset()), hosts, frozenset()


def finished(job: Job, rng: random.Random) -> Made:
    run = Machine(job, rng).run()
    hosts = [
        Host(state="gone", alive=False, exit="clean", exit_at=run.host_end[r])
        for r in range(job.world)
    ]
    return run, Truth("healthy end", frozenset({"healthy"}), frozenset()), hosts, frozenset()


def moving(job: Job, rng: random.Random) -> Made:
    run = Machine(job, rng).run()
    hosts = [Host(state="running", function="backward") for _ in range(job.world)]
    return run, Truth("healthy, moving", frozenset({"healthy"}), frozenset()), hosts, frozenset()


def slow(job: Job, rng: random.Random) -> Made:
    rank = rng.randrange(job.world)
    run = Machine(job, rng, slow={rank: 30.0}).run()
    hosts = [Host(state="running", function="backward") for _ in range(job.world)]
    return run, Truth("one slow rank", frozenset({"healthy"}), frozenset()), hosts, frozenset()


def killed(job: Job, rng: random.Random) -> Made:
    run = Machine(job, rng).run()
    hosts = [Host(state="gone", alive=False, exit="signal", signal=9) for _ in range(job.world)]
    return (
        run,
        Truth("all killed from outside", frozenset({"healthy"}), frozenset()),
        hosts,
        frozenset(),
    )
