"""The same evidence, three analysers: ``python -m tools.side_by_side [--cases 100] [--write]``.

Compared are the ranks that each names, as only HangScope gives verdicts: with torch's
``torchfrtrace``, and with the collective analyser of NVIDIA's ``nvidia-resiliency-ext`` if it can
be imported (its `CollectiveAnalyzer`, without a language model). Both read Flight Recorder dumps
only, so what a recorded hang left as rings is exported to dumps for them, and HangScope is scored
on these dumps, too. Nobody else is scored on what it does not read.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hangscope import __version__
from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence
from hangscope.replay.fixture import find_fixtures, load_fixture
from hangscope.replay.verify import load_recorded
from hangscope.report import flight_recorder
from hangscope.trace.load import load_trace
from tools.simulator import torchfrtrace
from tools.simulator.case import Truth
from tools.simulator.native_dumps import write
from tools.simulator.score import draws, expected

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "side-by-side.md"
SEED = 3031
PICKLES = ("pickle 2.10", "pickle 2.4", "pickle 2.9, only active", "list (torch 2.2)")
JSONS = ("json 2.5", "json 2.10, only active")
OUTCOMES = ("exact", "in part", "several", "nobody", "wrong", "error")

Named = Callable[[Path], frozenset[int]]


@dataclass(frozen=True, slots=True)
class Question:
    """Dumps, and which ranks are at fault."""

    name: str
    folder: Path
    culprits: frozenset[int]
    ambiguous_with: frozenset[int] = frozenset()


@dataclass(slots=True)
class Score:
    """How often a tool was right on one corpus."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    """Wall time of all answers together."""


def hangscope_names(folder: Path) -> frozenset[int]:
    """The ranks that HangScope holds responsible, of all findings."""
    found = diagnose(load_trace([folder]))
    if found.confidence is Confidence.AMBIGUOUS:
        raise Several(frozenset(found.culprits))
    return frozenset(rank for finding in found.findings for rank in finding.culprits)


class Several(Exception):  # noqa: N818
    """The tool says itself that it cannot decide between these ranks."""

    def __init__(self, ranks: frozenset[int]) -> None:
        super().__init__(sorted(ranks))
        self.ranks = ranks


def torch_names(folder: Path) -> frozenset[int]:
    """The ranks that ``torchfrtrace`` lists as missing or as culprits."""
    return frozenset(torchfrtrace.blamed(folder))


def nvrx_names(folder: Path) -> frozenset[int]:
    """The "hanging ranks" of NVRx's analyser."""
    from nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution import (  # type: ignore[import-not-found]
        CollectiveAnalyzer,
    )

    asked = {"fr_path": str(folder), "pattern": "*", "verbose": False, "health_check": False}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found, _ = CollectiveAnalyzer(asked).run_sync(asked)
    text = str(found["hanging_ranks"])
    return frozenset(int(n) for n in text[text.index("[") :].strip("[] ").split(",") if n.strip())


def outcome(tool: Named, question: Question) -> str:
    """What a tool's answer is worth."""
    try:
        named = tool(question.folder)
    except Several as several:
        return "several" if question.culprits <= several.ranks else "wrong"
    except (Exception, SystemExit):
        return "error"
    if named == question.culprits:
        return "exact"
    if question.culprits <= named <= question.culprits | question.ambiguous_with:
        return "exact"
    if not named:
        return "nobody"
    return "in part" if named < question.culprits else "wrong"


def simulated(cases: int, dialects: tuple[str, ...], folder: Path) -> Iterator[Question]:
    """Dumps of virtual jobs with a fault, or without one."""
    for case, dialect in draws(cases, SEED, dialects=list(dialects)):
        if dialect.name == "ring":
            continue  # a fault that no dump shows
        truth: Truth = expected(case, dialect)
        place = folder / str(case.number)
        write(case, dialect, place)
        yield Question(str(case.number), place, truth.culprits, truth.ambiguous_with)


def recorded(folder: Path) -> Iterator[Question]:
    """Recorded hangs that are more than a log, exported as dumps."""
    for path in find_fixtures([ROOT / "fixtures"]):
        trace = load_recorded(path / "dumps")
        if all(facts.exit is not None for facts in trace.ranks.values()):
            continue  # nobody would be left to write a dump
        if all(source.format == "job-log" for source in trace.sources):
            continue
        target = folder / path.name
        flight_recorder.write(trace, target)
        _only_dumps(target, {r for r, facts in trace.ranks.items() if facts.exit is not None})
        yield Question(path.name, target, frozenset(load_fixture(path).expected.culprits))


def _only_dumps(folder: Path, ended: set[int]) -> None:
    """Remove what torch's recorder would not have left: dumps of processes that have ended."""
    for path in folder.iterdir():
        rank = path.name.rpartition("_")[2]
        if not rank.isdecimal() or int(rank) in ended:
            path.unlink()


def as_recorded() -> Score:
    """HangScope on what the recorded hangs have left: rings, journals, logs, native dumps."""
    score = Score()
    for path in find_fixtures([ROOT / "fixtures"]):
        began_s = time.perf_counter()
        found = diagnose(load_recorded(path / "dumps"))
        score.seconds += time.perf_counter() - began_s
        is_right = set(found.culprits) == set(load_fixture(path).expected.culprits)
        said = "several" if found.confidence is Confidence.AMBIGUOUS else "exact"
        score.counts[said if is_right else "wrong"] += 1
    return score


def compare(
    questions: Iterator[Question], tools: dict[str, Named]
) -> tuple[dict[str, Score], list[str]]:
    """Scores, and the questions that another tool answered better than HangScope."""
    scores, better = {name: Score() for name in tools}, []
    for question in questions:
        got = {}
        for name, tool in tools.items():
            began_s = time.perf_counter()
            got[name] = outcome(tool, question)
            scores[name].seconds += time.perf_counter() - began_s
            scores[name].counts[got[name]] += 1
        mine, *theirs = got.values()
        if mine != "exact" and "exact" in theirs:
            better.append(f"{question.name} ({mine})")
        shutil.rmtree(question.folder, ignore_errors=True)
    return scores, better


def main() -> None:
    """Compare, and print or write the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.side_by_side", description=__doc__)
    parser.add_argument("--cases", type=int, default=100, help="virtual jobs per kind of dump")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    # Both others answer by log messages, so logging stays on, and only root prints nothing.
    logging.getLogger().addHandler(logging.NullHandler())
    tools: dict[str, Named] = {"HangScope": hangscope_names, "torchfrtrace": torch_names}
    if nvrx := _version("nvidia-resiliency-ext"):
        tools["NVRx"] = nvrx_names
    parts = [_HEAD.format(hangscope=__version__, torch=_version("torch"), nvrx=nvrx or "absent")]
    better: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, questions, names in (
            (
                f"Virtual jobs, pickles (seed {SEED})",
                simulated(arguments.cases, PICKLES, folder),
                tools,
            ),
            (
                f"Virtual jobs, JSON without stacks (seed {SEED})",
                simulated(arguments.cases, JSONS, folder),
                {name: tool for name, tool in tools.items() if name != "torchfrtrace"},
            ),
            ("Recorded hangs, exported as dumps", recorded(folder), tools),
        ):
            scores, lost = compare(questions, names)
            better += lost
            parts.append(f"## {title}\n\n{_table(scores)}")
    own = _table({"HangScope": as_recorded()})
    parts.append(f"## Recorded hangs, all that they left\n\n{own}")
    parts.append(_WORSE.format(count=len(better), names=", ".join(better) or "none"))
    page = "\n\n".join(parts) + "\n"
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(page)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _table(scores: dict[str, Score]) -> str:
    rows = [
        "| | cases | exact | in part | says several | names nobody | wrong | error | time |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, score in scores.items():
        total = sum(score.counts.values())
        shares = [f"{score.counts[kind] / max(total, 1):.0%}" for kind in OUTCOMES]
        rows.append(
            f"| {name} | {total} | {' | '.join(shares)} | {score.seconds / max(total, 1):.2f} s |"
        )
    return "\n".join(rows)


_HEAD = """# Side by side

`python -m tools.side_by_side --write` makes this page: the same evidence, given to HangScope
{hangscope}, to `torchfrtrace` of torch {torch}, and to the collective analyser of
nvidia-resiliency-ext ({nvrx}; without a language model). Of each answer only the ranks count: the
others give no verdict, no line and no advice.

*Exact*: the ranks at fault, and no others (nobody, if nobody is at fault). *In part*: only ranks at
fault, not all of them. *Says several*: the tool itself says that it cannot decide, and the truth is
among what it lists. *Wrong*: an innocent rank is named. *Error*: it ends with an exception.

Read it with care. The virtual jobs and most recordings are HangScope's own, and its rules were
written while looking at their kind. The others were made for NCCL dumps of large jobs, in which
most hangs are one missing rank. `torchfrtrace` is a tool for reading dumps, and its output holds
more than the ranks that are counted here. NVRx also has an analysis of logs, by a language model,
which is not compared. Processes that had ended leave no dump: torch's recorder would not have
written one, and HangScope's ring of them is left out here."""

_WORSE = """## Where HangScope is worse

* In {count} of these cases another tool was exact and HangScope was not: {names}.
* Dumps of a single process tell it little; rings, logs and the monitor's journal tell it most, so
  the recorder has to run before the hang. The others need nothing but torch.
* It reads the stacks of all dumps and weighs explanations: on dumps of thousands of ranks it takes
  longer than a table of missing ranks ([figures](benchmarks-analyze.md)).
* It prints one cause at a time. Who wants every collective of every rank in one table gets that
  from `torchfrtrace -j`."""


if __name__ == "__main__":
    main()
