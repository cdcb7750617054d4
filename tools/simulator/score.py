"""Scores how exact the verdicts are, for HangScope and for ``torchfrtrace`` on the same files.

A case is *exact* if verdict and culprits are those of the truth. If the dumps would look the same
with the roles swapped, an ambiguous answer that contains the truth is right, too. If the culprit
left no dump at all, so is an answer that names nobody. Naming an innocent rank is *wrong*; doing so
as ``certain`` is counted separately, because it must never happen.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis
from hangscope.trace.load import load_trace
from hangscope.trace.model import Trace
from tools.simulator import torchfrtrace
from tools.simulator.case import Case, Truth, UnsuitableError
from tools.simulator.dialects import DIALECTS, Dialect, visible
from tools.simulator.faults import FAULTS, IN_DUMPS, NEEDS_HOST, draw
from tools.simulator.native_dumps import write
from tools.simulator.outcomes import CRASH, EXACT, UNDECIDED, WRONG
from tools.simulator.ring_traces import ring_trace
from tools.simulator.several import MISTAKES, draw_several, judge_several
from tools.simulator.two_faults import TWO_FAULTS, draw_two, judge_two

IN_LOGS = frozenset(
    {
        "host_stuck", "crashed", "clean_exit", "fewer_batches", "lost", "extra", "different_op",
        "different_shape", "network_stuck", "skipped",
    }
)  # fmt: skip
"""Faults visible in a watchdog's lines, which do not contain partners, dtypes and order."""
NO_DTYPES = ("none", "1.5", "log")
"""Versions of dumps that hold no dtypes."""
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
    """(outcome, number of innocents named, whether as certain) of one diagnosis."""
    if case.truth.fault in MISTAKES:
        return judge_several(case, found)
    if case.truth.fault in TWO_FAULTS:
        return judge_two(case, found)
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
        silent.add("stuck_collective")  # nothing shows that there was one more rank
    if not named and verdict in silent and not truth.verdicts & {"healthy"}:
        return UNDECIDED, 0, certain
    if found.confidence is Confidence.AMBIGUOUS and truth.culprits and truth.culprits <= named:
        return UNDECIDED, 0, certain
    return WRONG, innocents + len(others), certain


def expected(case: Case, dialect: Dialect) -> Truth:
    """The part of the truth that the dialect can express."""
    truth = case.truth
    if truth.fault == "device stuck" and case.lost:
        # Or the member without a dump is gone, and passes nothing on to that device.
        truth = replace(truth, ambiguous_with=case.lost | truth.culprits)
    if dialect.hosts:
        return truth
    if truth.fault in ("crash", "clean exit", "died in flight", "exited in flight"):
        # If nobody observed the process, a dead rank is one that left no dump.
        truth = replace(truth, verdicts=frozenset({"rank_lost"}))
        truth = replace(truth, ambiguous_with=_alone_behind(case))
    if truth.fault == "different root":
        # Roots are not recorded either: all members have joined, and none finishes.
        truth = replace(truth, verdicts=frozenset({"stuck_collective"}), culprits=frozenset())
    if truth.fault == "different dtype" and dialect.version in NO_DTYPES:
        # Dtypes are not recorded, so all that can be seen is that no member finishes.
        truth = replace(truth, verdicts=frozenset({"stuck_collective"}), culprits=frozenset())
    if dialect.only_active and truth.verdicts & {"p2p_unmatched"} and not truth.ambiguous_with:
        # Without the past, it is not known which rank of a cycle omitted its half.
        groups = [g for g in case.run.job.groups if truth.culprits <= set(g.ranks)]
        around = {r for g in groups if g.desc.startswith(("PIPE", "CONTEXT")) for r in g.ranks}
        truth = replace(truth, ambiguous_with=frozenset(around))
    if dialect.version == "none" and truth.verdicts & {"rank_lost", "rank_exited"}:
        # Members are not listed anywhere, so a lost highest rank may leave no evidence at all.
        truth = replace(truth, verdicts=truth.verdicts | {"inconclusive", "rank_lost"})
    if truth.fault == "healthy, moving" and dialect.only_active and not _any_active(case):
        truth = replace(truth, verdicts=truth.verdicts | {"quiescent", "inconclusive"})
    return truth


def _alone_behind(case: Case) -> frozenset[int]:
    """A dead process and the only member that cannot end what others have ended with it.

    Its dump is missing: the other member's device may as well be stuck.
    """
    (dead,) = case.truth.culprits
    ended: dict[tuple[int, int], set[int]] = defaultdict(set)
    begun: dict[tuple[int, int], set[int]] = defaultdict(set)
    for issued in case.run.issued:
        for item in issued:
            place = item.op.group, item.collective_seq
            (ended if item.completed < inf else begun)[place].add(item.rank)
    partly = [ranks - {dead} for place, ranks in begun.items() if ended[place]]
    behind = set().union(*partly)
    return frozenset({dead, *behind}) if len(behind) == 1 else frozenset()


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
    several: bool = False,
    two: bool = False,
) -> Iterator[Outcome]:
    """Draw, write, analyze and score ``cases`` cases, with dialects and faults in turn.

    ``lose``: omit the dump of one rank, drawn among those that are not at fault. ``several``: the
    faults are those that several ranks have in common. ``two``: two ranks make one mistake each.
    """
    folder = Path(tempfile.mkdtemp(prefix="hangscope-simulator-"))
    drawn = draws(
        cases, seed, dialects=dialects, faults=faults, lose=lose, several=several, two=two
    )
    try:
        for case, dialect in drawn:
            yield one(case, dialect, folder / str(case.number), with_stock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def draws(
    cases: int,
    seed: int,
    *,
    dialects: list[str] | None = None,
    faults: list[str] | None = None,
    lose: bool = False,
    several: bool = False,
    two: bool = False,
) -> Iterator[tuple[Case, Dialect]]:
    """The cases of `run`, each with its dialect, neither written nor analyzed yet."""
    names = dialects or list(DIALECTS)
    kinds = faults or list(TWO_FAULTS if two else MISTAKES if several else FAULTS)
    number = done = 0
    while done < cases:
        number += 1
        fault = kinds[number % len(kinds)]
        dialect = DIALECTS[names[(number // len(kinds) + number) % len(names)]]
        if dialect.log and fault not in IN_LOGS:
            dialect = DIALECTS["ring"]
        if fault in NEEDS_HOST and not dialect.hosts and fault not in IN_DUMPS:
            dialect = DIALECTS["ring"]
        if (several or two) and "dtype" in fault and dialect.version in NO_DTYPES:
            dialect = DIALECTS["ring"]
        try:
            shape = LOG_SHAPES[number % len(LOG_SHAPES)] if dialect.log else None
            if two:
                case = draw_two(number, seed, fault)
            elif several:
                case = draw_several(number, seed, fault)
            else:
                case = draw(number, seed, fault, shape)
        except UnsuitableError:
            continue
        if lose:
            case.lost |= _victim(case, random.Random(f"{seed}/{number}/lost"))
        done += 1
        yield case, dialect


def observed(case: Case, dialect: Dialect, folder: Path) -> Trace:
    """The trace of a case, written to ``folder`` and read again if the dialect is one of files."""
    if dialect.name == "ring":
        return ring_trace(case)
    write(case, dialect, folder)
    return load_trace([folder])


def _victim(case: Case, rng: random.Random) -> frozenset[int]:
    rest = set(range(case.run.job.world)) - case.truth.culprits - case.lost
    return frozenset([rng.choice(sorted(rest))]) if rest else frozenset()


def one(case: Case, dialect: Dialect, folder: Path, with_stock: bool) -> Outcome:
    """Write and analyze one case."""
    stock_outcome, stock_detail = None, ""
    started = 0.0
    try:
        trace = observed(case, dialect, folder)
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
