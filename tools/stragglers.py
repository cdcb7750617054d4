"""Simulated jobs with known stragglers: precision and recall of the lateness analysis.

python -m tools.stragglers --jobs 400 --seed 1
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.lateness.lateness import lateness
from hangscope.trace.model import (
    MEMBER_DTYPE,
    RECORD_DTYPE,
    Flag,
    Frame,
    Group,
    RankFacts,
    Signature,
    State,
    Trace,
)
from tools.nvrx import DEFAULT, STRICT, named_by_sections

KINDS = ("rank", "host", "position", "sometimes", "every", "none", "noisy", "pipeline", "in turn")
HEALTHY = frozenset({"none", "noisy", "pipeline", "in turn"})
SLOWNESS = (0.01, 0.03, 0.1, 0.2, 0.5)
_START_NS = 1_700_000_000 * 10**9
_PER_HOST = 4
_EVERY = 10


@dataclass(frozen=True)
class Case:
    """One job. ``slowness``: how much longer the late ranks compute when they are late."""

    kind: str
    slowness: float
    world: int
    steps: int
    noise: float
    culprits: tuple[int, ...]


def draw(rng: np.random.Generator, kind: str, slowness: float) -> Case:
    """A random job of the kind."""
    world = int(rng.choice([8, 16, 32]))
    noise = float(rng.uniform(0.005, 0.03)) * (5 if kind == "noisy" else 1)
    victim = int(rng.integers(world))
    culprits = {
        "rank": (victim,),
        "sometimes": (victim,),
        "every": (victim,),
        "host": tuple(range(victim // _PER_HOST * _PER_HOST, victim // _PER_HOST * 4 + _PER_HOST)),
        "position": tuple(range(victim % 4, world, 4)),
    }.get(kind, ())
    return Case(kind, slowness, world, int(rng.integers(80, 300)), noise, culprits)


def compute_s(case: Case, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Seconds each rank computes in each step, shape ``[steps, ranks]``."""
    base = 0.1 * np.exp(rng.normal(0, case.noise, (case.steps, case.world)))
    base *= np.exp(rng.normal(0, 0.05, (case.steps, 1)))  # steps differ for all ranks alike
    late = np.zeros((case.steps, case.world), bool)
    late[:, list(case.culprits)] = True
    if case.kind == "sometimes":
        late &= rng.random((case.steps, 1)) < 0.2
    if case.kind == "every":
        late &= (np.arange(case.steps) % _EVERY == 3)[:, None]
    if case.kind == "in turn":
        late[np.arange(case.steps), rng.integers(case.world, size=case.steps)] = True
    # A rank that is late only now and then is late by more, or it would not matter.
    factor = {"sometimes": 5, "every": 10}.get(case.kind, 1)
    return base * (1 + late * case.slowness * factor)


class Job:
    """Collects the records of a simulated job."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        self.case = case
        world = case.world
        self.groups = [Group("0", "default_pg", tuple(range(world)), backend="gloo")]
        for first in range(0, world, 4):
            ranks = tuple(range(first, first + 4))
            self.groups.append(Group(f"tp{first}", "tp", ranks, backend="gloo"))
        self.rows: list[tuple[int, ...]] = []
        self.seq: dict[tuple[int, int], int] = {}
        self.clock_s = rng.normal(0, 0.002, world // _PER_HOST)  # hosts disagree by milliseconds

    def meet(
        self,
        group: int,
        ranks: tuple[int, ...],
        at_s: npt.NDArray[np.float64],
        flags: Flag = Flag(0),  # noqa: B008
    ) -> float:
        """One collective; returns when it ends (s)."""
        end = float(at_s.max()) + 0.001
        for rank, arrived in zip(ranks, at_s.tolist(), strict=True):
            key = (rank, group)
            self.seq[key] = self.seq.get(key, 0) + 1
            self._row(rank, group, self.seq[key], 0, arrived, end, -1, flags)
        return end

    def send(self, rank: int, peer: int, begin: float, end: float) -> None:
        """A send from a rank to a peer."""
        self._row(rank, 0, self.seq.get((rank, 0), 0), 1, begin, end, peer, Flag.P2P)

    def _row(
        self, rank: int, group: int, seq: int, op: int, begin: float, end: float, peer: int,
        flags: Flag,
    ) -> None:  # fmt: skip
        clock = self.clock_s[rank // _PER_HOST]
        times = [_START_NS + int((t + clock) * 1e9) for t in (begin, end)]
        self.rows.append((rank, group, seq, op, peer, *times, int(flags)))

    def trace(self) -> Trace:
        """Everything as a trace."""
        rows = np.array(sorted(self.rows, key=lambda r: (r[0], r[5])), np.int64)
        records = np.zeros(len(rows), RECORD_DTYPE)
        for column, name in enumerate(
            (
                "rank",
                "group",
                "collective_seq",
                "signature",
                "peer",
                "created_ns",
                "completed_ns",
                "flags",
            )
        ):
            records[name] = rows[:, column]
        records["state"] = int(State.COMPLETED)
        ranks = {
            r: RankFacts(r, host=f"node{r // _PER_HOST}", alive=None)
            for r in range(self.case.world)
        }
        return Trace(
            records,
            np.zeros(0, MEMBER_DTYPE),
            tuple(self.groups),
            (Signature("all_reduce"), Signature("send")),
            ((Frame("train", "/job/train.py", 40),),),
            ranks,
            world_size=self.case.world,
        )


def simulate(case: Case, rng: np.random.Generator) -> Trace:
    """The records of a job: tensor-parallel collectives, gradient buckets, a blocking norm."""
    job = Job(case, rng)
    everyone = tuple(range(case.world))
    now = np.zeros(case.world)
    for work in compute_s(case, rng):
        if case.kind == "pipeline":
            now = _pipeline_step(job, now, work, everyone)
            continue
        half = now + work / 2
        for number, group in enumerate(job.groups[1:], 1):
            half[list(group.ranks)] = job.meet(number, group.ranks, half[list(group.ranks)])
        ready = half + work / 2
        for bucket in range(4):  # overlaps with the backward pass: nobody waits here
            job.meet(0, everyone, half + (ready - half) * (bucket + 1) / 5, Flag.ASYNC)
        now = np.full(case.world, job.meet(0, everyone, ready))
    return job.trace()


def _pipeline_step(
    job: Job, now: npt.NDArray[np.float64], work: npt.NDArray[np.float64], everyone: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """Stages of four ranks each, one after the other; then all meet."""
    ready = now + work
    for first in range(4, job.case.world, 4):
        for rank in range(first, first + 4):
            ready[rank] = max(ready[rank], ready[rank - 4]) + work[rank] / 2
            job.send(rank - 4, rank, float(ready[rank - 4]), float(ready[rank]))
    return np.full(job.case.world, job.meet(0, everyone, ready))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nvrx", action="store_true", help="the scores of tools.nvrx, too")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    score = Score("HangScope")
    others = [Score(f"nvidia-resiliency-ext, threshold {t:g}") for t in (DEFAULT, STRICT)]
    for number in range(options.jobs):
        kind = KINDS[number % len(KINDS)]
        slowness = SLOWNESS[number // len(KINDS) % len(SLOWNESS)]
        case = draw(rng, kind, slowness)
        if options.nvrx:
            again = copy.deepcopy(rng)
            Job(case, again)  # draws what the simulation draws before
            work_s = compute_s(case, again)
            for other, threshold in zip(others, (DEFAULT, STRICT), strict=True):
                ranks = named_by_sections(work_s, threshold)
                other.count(case, [ranks] if ranks else [])
        score.count(case, [s.ranks for s in lateness(simulate(case, rng)).stragglers])
    print("\n\n".join(str(one) for one in (score, *(others if options.nvrx else ()))))


class Score:
    """How often the late ranks were named, by kind and slowness."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.table: dict[tuple[str, float], list[int]] = {}
        """Jobs, stragglers named rightly, and wrongly."""

    def count(self, case: Case, named: Sequence[tuple[int, ...]]) -> None:
        """One job."""
        right = sum(ranks == case.culprits for ranks in named)
        row = self.table.setdefault((case.kind, case.slowness), [0, 0, 0])
        row[0] += 1
        row[1] += right
        row[2] += len(named) - right

    def __str__(self) -> str:
        columns = " | ".join(f"{slowness:.0%}" for slowness in SLOWNESS)
        lines = [
            f"{self.name}\n\n| late | {columns} | named wrongly |",
            f"|---|{'---|' * (len(SLOWNESS) + 1)}",
        ]
        for kind in KINDS:
            rows = [self.table.get((kind, slowness), [0, 0, 0]) for slowness in SLOWNESS]
            cells = ["-" if kind in HEALTHY else f"{right} of {jobs}" for jobs, right, _ in rows]
            lines.append(f"| {kind} | {' | '.join(cells)} | {sum(row[2] for row in rows)} |")
        every = self.table.items()
        strong = [v for (kind, slowness), v in every if slowness >= 0.1 or kind in HEALTHY]
        late = sum(v[0] for (kind, slowness), v in every if slowness >= 0.1 and kind not in HEALTHY)
        found = sum(v[1] for v in strong)
        lines += [
            f"\nrecall at 10 % and more: {found / max(1, late):.1%}",
            f"precision there and in jobs without: {_precision(strong)}",
            f"precision over all jobs: {_precision([*self.table.values()])}",
        ]
        return "\n".join(lines)


def _precision(rows: Sequence[Sequence[int]]) -> str:
    """The share of those named that were named rightly."""
    right, wrong = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return f"{right / max(1, right + wrong):.1%}"


if __name__ == "__main__":
    main()
