"""One known fault per case, and the truth that goes with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tools.simulator.execute import RUN_AHEAD, Machine, Run
from tools.simulator.program import SHAPES, Job, Op, write

MISMATCH = frozenset(
    {"collective_mismatch", "shape_mismatch", "dtype_mismatch", "argument_mismatch"}
)
DIVERGED = MISMATCH | {"missing_rank", "deadlock_cycle", "p2p_unmatched"}
"""How a skipped or an added operation can show, depending on what came next."""


@dataclass(frozen=True)
class Truth:
    """What a right answer looks like.

    ``ambiguous_with``: where the dumps look the same with the roles swapped (two members, or two
    equal sides), the answer may be ambiguous and hold the truth among these ranks.
    """

    fault: str
    verdicts: frozenset[str]
    culprits: frozenset[int]
    ambiguous_with: frozenset[int] = frozenset()


@dataclass
class Host:
    """What a recorder beside the rank would have seen of the process."""

    state: str = "sleeping"
    alive: bool = True
    exit: str = ""
    exit_at: float = 0.0
    exception: str = ""
    function: str = ""
    finalized: bool = False
    by_launcher: bool = False
    signal: int | None = None


@dataclass
class Case:
    """A run with a fault, before it is written in a dialect."""

    number: int
    run: Run
    truth: Truth
    hosts: list[Host]
    lost: frozenset[int] = frozenset()
    at: list[float] = field(default_factory=list)
    """When each rank's dump is taken."""
    keep: int = 0
    """Entries the buffer holds; 0: all."""


class UnsuitableError(Exception):
    """The fault did not take in this job; draw another."""


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


def _hosts(job: Job) -> list[Host]:
    return [Host(function="step") for _ in range(job.world)]


def _stop(job: Job, rng: random.Random, kind: str) -> tuple[int, int]:
    rank = rng.randrange(job.world)
    lines = [i for i, op in enumerate(job.programs[rank]) if op.step >= 2 and op.kind != "wait"]
    index = rng.choice(lines)
    job.programs[rank].insert(index, Op(kind, site=("load_batch", "/srv/job/data.py", 41)))
    return rank, index


Made = tuple[Run, Truth, list[Host], frozenset[int]]
Fault = Callable[[Job, random.Random], Made]


def host_stuck(job: Job, rng: random.Random) -> Made:
    rank, _ = _stop(job, rng, "stop")
    run = Machine(job, rng).run()
    hosts = _hosts(job)
    hosts[rank] = Host(
        state=rng.choice(["sleeping", "running", "stopped", "gil-held"]), function="load_batch"
    )
    verdicts = frozenset({"missing_rank", "p2p_unmatched"})
    return run, Truth("host stuck", verdicts, frozenset({rank})), hosts, frozenset()


def crashed(job: Job, rng: random.Random) -> Made:
    rank, _ = _stop(job, rng, "die")
    run = Machine(job, rng).run()
    hosts = _hosts(job)
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
    """A crash after which the others fail in communication or are told to stop."""
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
    hosts = _hosts(job)
    hosts[rank] = Host(state="gone", alive=False, exit="clean", exit_at=run.host_end[rank])
    return (
        run,
        Truth("clean exit", frozenset({"rank_exited"}), frozenset({rank})),
        hosts,
        frozenset({rank}),
    )


def fewer_batches(job: Job, rng: random.Random) -> Made:
    """The rank finished early and sits in its teardown."""
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
        _hosts(job),
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
        _hosts(job),
        frozenset(),
    )


def _tie(job: Job, group: int) -> frozenset[int]:
    ranks = _ranks_sharing(job, group)
    return ranks if len(ranks) == 2 else frozenset()


def skipped(job: Job, rng: random.Random) -> Made:
    rank = rng.randrange(job.world)
    index = _pick(job, rng, rank)
    op = job.programs[rank].pop(index)
    run = Machine(job, rng).run()
    return (
        run,
        Truth("skipped collective", DIVERGED, frozenset({rank}), _tie(job, op.group)),
        _hosts(job),
        frozenset(),
    )


def _changed(job: Job, rng: random.Random, fault: str, verdict: str, **change: object) -> Made:
    rank = rng.randrange(job.world)
    index = _pick(job, rng, rank, name="all_reduce")
    op = job.programs[rank][index]
    job.programs[rank][index] = replace(op, **change)  # type: ignore[arg-type]
    run = Machine(job, rng).run()
    truth = Truth(fault, frozenset({verdict}), frozenset({rank}), _tie(job, op.group))
    return run, truth, _hosts(job), frozenset()


def different_op(job: Job, rng: random.Random) -> Made:
    return _changed(job, rng, "different operation", "collective_mismatch", name="reduce", root=0)


def different_shape(job: Job, rng: random.Random) -> Made:
    return _changed(
        job, rng, "different shape", "shape_mismatch", input_sizes=((13,),), output_sizes=((13,),)
    )


def different_dtype(job: Job, rng: random.Random) -> Made:
    return _changed(job, rng, "different dtype", "dtype_mismatch", dtype="Double")


def different_root(job: Job, rng: random.Random) -> Made:
    """One rank means another root; dumps do not hold roots."""
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
    return run, truth, _hosts(job), frozenset()


def different_reduce_op(job: Job, rng: random.Random) -> Made:
    """One rank takes the maximum where the others sum: nothing hangs, every result is wrong."""
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
    """One rank uses two groups in the other order than its fellow members."""
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
        _hosts(job),
        frozenset(),
    )


def p2p_unmatched(job: Job, rng: random.Random) -> Made:
    rank = rng.randrange(job.world)
    sends = _op_indices(job, rank, ("send",))
    if not sends:
        raise UnsuitableError
    job.programs[rank].pop(rng.choice(sends))
    run = Machine(job, rng).run()
    if not run.hung:
        raise UnsuitableError
    verdicts = {"p2p_unmatched"}
    if all(item.completed < float("inf") for item in run.issued[rank]):
        verdicts.add("missing_rank")  # it waits for nothing: it may as well be in user code
    return (
        run,
        Truth("unmatched send", frozenset(verdicts), frozenset({rank})),
        _hosts(job),
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
        _hosts(job),
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
        _hosts(job),
        frozenset(),
    )


def _issue_order(job: Job, rank: int) -> list[Op]:
    """The rank's operations as they are issued, batch members before their batch."""
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
        _hosts(job),
        frozenset(),
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


FAULTS: dict[str, Fault] = {
    f.__name__: f
    for f in (
        host_stuck, crashed, torn_down, clean_exit, fewer_batches, lost, innocent_lost, extra,
        skipped, different_op, different_shape, different_dtype, opposite_order, p2p_unmatched,
        recv_circle, device_stuck, network_stuck, quiescent, finished, moving, slow, killed,
        different_root, different_reduce_op,
    )
}  # fmt: skip
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
    }
)
"""Faults that only a recorder beside the rank can tell: dumps alone do not hold the evidence."""
ENDS_WELL = frozenset({"finished", "quiescent", "different_reduce_op"})
MID_RUN = frozenset({"moving", "slow", "killed"})


LARGE = ("tensor x pipeline x data", "tensor x experts x data")


def draw(number: int, seed: int, fault: str, shape: str | None = None) -> Case:
    """One case. The same numbers give the same case.

    Raises:
        UnsuitableError: if no job of this shape takes the fault after some tries.
    """
    rng = random.Random(f"{seed}/{number}/{fault}")
    for _ in range(40):
        chosen = shape or rng.choice(sorted(SHAPES))
        world = rng.choice([4, 8, 16] if chosen not in LARGE else [8, 16])
        blocking = rng.random() < 0.35
        steps = rng.randrange(8, 14) if chosen == "ddp" else rng.randrange(5, 9)
        job = write(chosen, world, steps, blocking, rng)
        try:
            run, truth, hosts, missing = FAULTS[fault](job, rng)
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
            if fault not in ENDS_WELL and not _waiting(run):
                continue
            case.at = [run.last + 600 + rng.uniform(0, 2) for _ in range(world)]
        if rng.random() < 0.3 and fault != "different_reduce_op":  # its trace would be gone
            case.keep = rng.randrange(RUN_AHEAD + 8, RUN_AHEAD + 40)
        return case
    raise UnsuitableError


def _waiting(run: Run) -> bool:
    """Whether a living rank waits for something."""
    inf = float("inf")
    return any(
        i.completed == inf
        for r, issued in enumerate(run.issued)
        if r not in run.died
        for i in issued
    )
