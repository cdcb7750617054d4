"""How exact the blame is, for HangScope and for ``torchfrtrace`` on the same files.

A case is *exact* when verdict and culprits are those of the truth. Where the dumps look the same
with the roles swapped, an answer marked ambiguous that holds the truth is right too, and where the
truth left no dump at all so is one that names nobody. Naming anybody who is innocent is *wrong*;
doing so as ``certain`` is counted apart, because that is what must never happen.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis
from hangscope.trace.load import load_trace
from tools.simulator import torchfrtrace
from tools.simulator.case import Case, Truth, UnsuitableError
from tools.simulator.dialects import DIALECTS, Dialect, visible
from tools.simulator.faults import FAULTS, NEEDS_HOST, draw
from tools.simulator.native_dumps import write
from tools.simulator.ring_traces import ring_trace

EXACT, UNDECIDED, WRONG, CRASH = "exact", "undecided", "wrong", "crash"


IN_LOGS = frozenset(
    {
        "host_stuck", "crashed", "clean_exit", "fewer_batches", "lost", "extra", "different_op",
        "different_shape", "network_stuck", "skipped",
    }
)  # fmt: skip
"""Faults of which a watchdog's lines can tell; partners, dtypes and order they do not hold."""
LOG_SHAPES = ("ddp", "fsdp", "tensor x data", "hybrid-shard", "experts")


@dataclass
class Tally:
    """Counts of outcomes."""

    counts: Counter[str] = field(default_factory=Counter)
    innocents: int = 0
    certain_wrong: int = 0

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def share(self, outcome: str) -> float:
        return self.counts[outcome] / self.total if self.total else 0.0


@dataclass
class Outcome:
    """One case in one dialect."""

    case: Case
    dialect: str
    mine: str
    detail: str
    innocents: int
    certain_wrong: bool
    stock: str | None = None
    stock_detail: str = ""
    seconds: float = 0.0


def judge(case: Case, dialect: Dialect, found: Diagnosis) -> tuple[str, int, bool]:
    """(outcome, innocents named, named as certain) of one diagnosis."""
    truth = expected(case, dialect)
    named = set(found.culprits)
    verdict = found.verdict.value
    innocents = len(named - truth.culprits - truth.ambiguous_with)
    certain = found.confidence is Confidence.CERTAIN and bool(named - truth.culprits)
    others = {r for f in found.findings[1:] for r in f.culprits} - truth.culprits
    others -= truth.ambiguous_with
    sure = {
        r for f in found.findings if f.confidence is Confidence.CERTAIN for r in f.culprits
    } - truth.culprits
    certain = certain or bool(sure)
    if verdict in truth.verdicts and named == truth.culprits and not others:
        return EXACT, 0, certain
    if (
        truth.ambiguous_with
        and found.confidence is Confidence.AMBIGUOUS
        and truth.culprits <= named <= truth.ambiguous_with | truth.culprits
    ):
        return EXACT, 0, certain
    silent = {"inconclusive", "quiescent"}
    if dialect.version in ("none", "log") and case.lost == {case.run.job.world - 1}:
        silent.add("stuck_collective")  # nothing says that there was one rank more
    if not named and verdict in silent and not truth.verdicts & {"healthy"}:
        return UNDECIDED, 0, certain
    if found.confidence is Confidence.AMBIGUOUS and truth.culprits and truth.culprits <= named:
        return UNDECIDED, 0, certain
    return WRONG, innocents + len(others), certain


def expected(case: Case, dialect: Dialect) -> Truth:
    """The truth as far as the dialect can hold it."""
    truth = case.truth
    if dialect.hosts:
        return truth
    if truth.fault in ("crash", "clean exit"):
        # Without anybody watching the process, a dead rank is one that left no dump.
        truth = replace(truth, verdicts=frozenset({"rank_lost"}))
    if truth.fault == "different root":
        # Nor are roots recorded: everybody is in, and nobody gets out.
        truth = replace(truth, verdicts=frozenset({"stuck_collective"}), culprits=frozenset())
    if truth.fault == "different dtype" and dialect.version in ("none", "1.5", "log"):
        # Dtypes are not recorded: all that can be seen is that nobody finishes.
        truth = replace(truth, verdicts=frozenset({"stuck_collective"}), culprits=frozenset())
    if dialect.only_active and truth.verdicts & {"p2p_unmatched"} and not truth.ambiguous_with:
        # Without the past, who of a circle left its half out cannot be told.
        groups = [g for g in case.run.job.groups if truth.culprits <= set(g.ranks)]
        around = {r for g in groups if g.desc.startswith(("PIPE", "CONTEXT")) for r in g.ranks}
        truth = replace(truth, ambiguous_with=frozenset(around))
    if dialect.version == "none" and truth.verdicts & {"rank_lost", "rank_exited"}:
        # Members are listed nowhere: of a lost highest rank nothing may be left.
        truth = replace(truth, verdicts=truth.verdicts | {"inconclusive", "rank_lost"})
    if truth.fault == "healthy, moving" and dialect.only_active and not _any_active(case):
        truth = replace(truth, verdicts=truth.verdicts | {"quiescent", "inconclusive"})
    return truth


def _any_active(case: Case) -> bool:
    return any(not done for r in range(case.run.job.world) for _, done in visible(case, r))


def run(
    cases: int,
    seed: int,
    *,
    with_stock: bool,
    dialects: list[str] | None = None,
    faults: list[str] | None = None,
    lose: bool = False,
) -> Iterator[Outcome]:
    """Draw, write, analyze and judge ``cases`` cases, dialects and faults in turn.

    ``lose``: without the dump of one rank, drawn among those that are not at fault.
    """
    names = dialects or list(DIALECTS)
    kinds = faults or list(FAULTS)
    number = 0
    folder = Path(tempfile.mkdtemp(prefix="hangscope-simulator-"))
    try:
        done = 0
        while done < cases:
            number += 1
            fault = kinds[number % len(kinds)]
            dialect = DIALECTS[names[(number // len(kinds) + number) % len(names)]]
            if dialect.log and fault not in IN_LOGS:
                dialect = DIALECTS["ring"]
            if (
                fault in NEEDS_HOST
                and not dialect.hosts
                and fault not in ("crashed", "clean_exit", "moving")
            ):
                dialect = DIALECTS["ring"]
            try:
                shape = LOG_SHAPES[number % len(LOG_SHAPES)] if dialect.log else None
                case = draw(number, seed, fault, shape)
            except UnsuitableError:
                continue
            if lose:
                case.lost |= _victim(case, random.Random(f"{seed}/{number}/lost"))
            done += 1
            yield one(case, dialect, folder / str(number), with_stock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _victim(case: Case, rng: random.Random) -> frozenset[int]:
    rest = set(range(case.run.job.world)) - case.truth.culprits - case.lost
    return frozenset([rng.choice(sorted(rest))]) if rest else frozenset()


def one(case: Case, dialect: Dialect, folder: Path, with_stock: bool) -> Outcome:
    """Write and analyze one case."""
    stock_outcome, stock_detail = None, ""
    started = 0.0
    try:
        if dialect.name == "ring":
            trace = ring_trace(case)
        else:
            write(case, dialect, folder)
            trace = load_trace([folder])
        started = time.perf_counter()
        found = diagnose(trace)
        seconds = time.perf_counter() - started
        outcome, innocents, certain = judge(case, dialect, found)
        detail = f"{found.verdict.value} {found.culprits} {found.confidence.value}: {found.summary}"
    except Exception:
        outcome, innocents, certain, seconds = CRASH, 0, False, 0.0
        detail = traceback.format_exc()
    if with_stock and dialect.name != "ring" and not dialect.json and not dialect.log:
        stock_outcome, stock_detail = torchfrtrace.judge(folder, expected(case, dialect))
    if folder.exists():
        shutil.rmtree(folder)
    return Outcome(
        case,
        dialect.name,
        outcome,
        detail,
        innocents,
        certain,
        stock_outcome,
        stock_detail,
        seconds,
    )
