"""``python -m tools.simulator.invariance --cases 200 --seed 1``: does the verdict depend on what
has nothing to do with the fault?

Every case is analyzed as it is and after each of `TRANSFORMATIONS`. With less evidence an answer
may become undecided; it must not become another one.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import track

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.load import load_trace
from tools.simulator.case import Case, UnsuitableError
from tools.simulator.dialects import DIALECTS, Dialect, nanoseconds
from tools.simulator.faults import FAULTS, IN_DUMPS, NEEDS_HOST, draw
from tools.simulator.native_dumps import native, write_dump
from tools.simulator.outcomes import EXACT, WRONG
from tools.simulator.score import expected, judge
from tools.simulator.transformations import TRANSFORMATIONS, Dumps


@dataclass(frozen=True)
class Change:
    """What became of one answer. ``outcome`` and ``before`` are those of the score."""

    case: Case
    dialect: str
    transformation: str
    before: str
    outcome: str
    certain_wrong: bool
    answer: str

    @property
    def is_worse(self) -> bool:
        """Whether the answer has become wrong."""
        return self.outcome == WRONG != self.before or self.certain_wrong


def changes(cases: int, seed: int) -> Iterator[list[Change]]:
    """Draw ``cases`` cases, with faults and dialects in turn, and transform each."""
    faults = [f for f in FAULTS if f not in NEEDS_HOST or f in IN_DUMPS]
    dialects = [d for d in DIALECTS.values() if d.name != "ring" and not d.log]
    folder = Path(tempfile.mkdtemp(prefix="hangscope-invariance-"))
    number = done = 0
    try:
        while done < cases:
            number += 1
            dialect = dialects[(number // len(faults) + number) % len(dialects)]
            try:
                case = draw(number, seed, faults[number % len(faults)], None)
            except UnsuitableError:
                continue
            done += 1
            yield changes_of(case, dialect, folder, seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def changes_of(case: Case, dialect: Dialect, folder: Path, seed: int) -> list[Change]:
    """The answers to one case after every transformation that applies."""
    world = case.run.job.world
    ranks = [rank for rank in range(world) if rank not in case.lost]
    original = Dumps(
        {rank: native(case, rank, dialect) for rank in ranks},
        {rank: nanoseconds(case.at[rank]) for rank in ranks},
        tuple(range(world)),
        dialect.json,
    )
    before, _, _ = judge(case, dialect, _diagnosis(original, folder))
    found = []
    for transformation in TRANSFORMATIONS:
        name = transformation.__name__
        dumps = transformation(original, random.Random(f"{seed}/{case.number}/{name}"))
        if dumps is None:
            continue
        answer = _diagnosis(dumps, folder)
        outcome, _, certain = judge(_renumbered(case, dialect, dumps), dialect, answer)
        text = f"{answer.verdict.value} {answer.culprits} {answer.confidence.value}"
        found.append(
            Change(case, dialect.name, name, before, outcome, certain, f"{text}: {answer.summary}")
        )
    return found


def _diagnosis(dumps: Dumps, folder: Path) -> Diagnosis:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for rank, document in dumps.of_rank.items():
        at_ns = dumps.taken_ns[rank]
        write_dump(folder, rank, document, as_json=dumps.as_json, at_ns=at_ns)
    return diagnose(load_trace([folder]))


def _renumbered(case: Case, dialect: Dialect, dumps: Dumps) -> Case:
    """The case with the truth in terms of the transformed dumps."""
    new, truth = dumps.new_rank, expected(case, dialect)
    truth = replace(
        truth,
        culprits=frozenset(new[r] for r in truth.culprits),
        ambiguous_with=frozenset(new[r] for r in truth.ambiguous_with),
    )
    return replace(case, truth=truth, lost=frozenset(new[r] for r in case.lost))


def table(counts: dict[str, Counter[str]]) -> str:
    """Markdown: per transformation what became of the answers."""
    lines = ["| transformation | cases | same | less decided | more decided | became wrong |"]
    lines.append("|---|---|---|---|---|---|")
    for name, count in counts.items():
        cells = (
            name.replace("_", " "),
            count.total(),
            *(count[k] for k in ("same", "less", "more", "wrong")),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def kind_of(change: Change) -> str:
    if change.is_worse:
        return "wrong"
    if change.outcome == change.before:
        return "same"
    return "more" if change.before == WRONG or change.outcome == EXACT else "less"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulator.invariance", description=__doc__
    )
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for found in track(
        changes(arguments.cases, arguments.seed), "cases", total=arguments.cases, transient=True
    ):
        for change in found:
            counts[change.transformation][kind_of(change)] += 1
            if change.is_worse:
                truth = change.case.truth
                print(
                    f"{change.transformation} #{change.case.number} {truth.fault} | "
                    f"{change.case.run.job.shape} | {change.dialect} | truth "
                    f"{sorted(truth.verdicts)} {sorted(truth.culprits)} in the original numbers\n"
                    f"    {change.before} before, now {change.answer}",
                    file=sys.stderr,
                )
    print(table(counts))
    return 1 if any(count["wrong"] for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
