"""How soon the first true word comes, and how often a healthy job hears one: with default settings.

``python -m tools.early hangs --count 200`` breaks jobs as `tools.chaos` does, but with HangScope's
default timeouts, and measures the time from the last progress of any rank to the first word in the
job's log that is true of the injected fault, be it a notice or a verdict. ``python -m tools.early
healthy --count 100`` runs jobs with compilations, evaluations, checkpoints, uneven steps and
pauses, and counts every word that they hear. One JSON line per job goes to ``--out``; ``--table
FILE...`` prints the figures of such files. The exit status is 1 if they are below the bar.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.chaos import PROGRAM, arguments_of, newest_ns
from tools.chaos_faults import HEALTHY, OUTSIDE, Draw, draw
from tools.chaos_score import RIGHT, Answer, score
from tools.forked_jobs import Job, Jobs, job_server
from tools.record_fixture import PRELOAD, ROOT

MEDIAN_S, NINETY_S, FALSE_PERCENT = 10.0, 15.0, 2.0
GIVE_UP_S = 150.0
"""Past the verdict at the default timeout."""
AFTER_S = 2.0
"""How long a job is followed after its first true word."""
HEALTHY_S = 300.0
LIVES = ("compile", "evaluate", "checkpoint", "uneven", "pause")


@dataclass(slots=True)
class Outcome:
    """What one job heard."""

    number: int
    seed: int
    kind: str
    """The fault or, of a healthy job, its life."""
    what: str
    words: list[dict[str, Any]] = field(default_factory=list)
    """The monitor's notices and verdicts: event, at_ns, verdict, culprits, confidence, summary."""
    first_true_s: float | None = None
    """From the last progress; None if no word was true."""
    told: str = ""
    """``notice`` or ``verdict``, whichever the first true word was."""
    false: list[str] = field(default_factory=list)
    """Words that are not true."""
    ended: bool = False
    load: float = 0.0
    """Load average of the machine at the end of the job, jobs per 1 core and minute."""
    log: list[str] = field(default_factory=list)
    """HangScope's own lines in the job's log."""


def hang(number: int, seed: int, jobs: Jobs, place: Path) -> Outcome | None:
    """Run one broken job until its first true word; None if the draw is a healthy one."""
    truth = draw(number, seed)
    if truth.fault in HEALTHY:
        return None
    outcome = Outcome(number, seed, truth.fault, f"{truth.kind} x{truth.world} rank {truth.rank}")
    directory = _start(jobs, place, str(PROGRAM), arguments_of(truth, 400, "cpu"), truth.world)
    began_s, alive, moving_s, struck, ended_s = time.monotonic(), truth.world, 0.0, False, 0.0
    until_s = began_s + GIVE_UP_S
    began_ns = time.time_ns()
    try:
        while (now_s := time.monotonic()) < until_s and not (ended_s and now_s - ended_s > 8.0):
            ended = jobs.wait(0.1)
            if ended is not None:
                alive -= 1
                ended_s = 0.0 if alive else now_s
            if truth.fault in OUTSIDE and not struck:
                moving_s = moving_s or (now_s if newest_ns(directory) else 0.0)
                if moving_s and now_s - moving_s > truth.after_s and alive == truth.world:
                    jobs.signal(truth.rank, OUTSIDE[truth.fault])
                    struck = True
            for word in words_of(directory)[len(outcome.words) :]:
                outcome.words.append(word)
                if not is_true(truth, word, ended=not alive):
                    outcome.false.append(str(word["summary"]))
                elif outcome.first_true_s is None:
                    stalled_ns = newest_ns(directory, before_ns=int(word["at_ns"])) or began_ns
                    outcome.first_true_s = (int(word["at_ns"]) - stalled_ns) / 1e9
                    outcome.told = str(word["event"])
                    until_s = min(until_s, now_s + AFTER_S)
    finally:
        outcome.ended = not alive
        _finish(jobs, place, outcome)
    if not outcome.words and score(truth, Answer(), ended=not alive) in RIGHT:
        outcome.told = "untold"
    return outcome


def is_true(truth: Draw, word: dict[str, Any], *, ended: bool) -> bool:
    """Whether a word is true of the fault: it names the rank, or both sides of a fair tie."""
    culprits = tuple(sorted(int(rank) for rank in word["culprits"]))
    answer = Answer(str(word["verdict"]), culprits, str(word["confidence"]))
    return culprits == (truth.rank,) or score(truth, answer, ended=ended) in RIGHT


def healthy(number: int, seed: int, jobs: Jobs, place: Path) -> Outcome:
    """Run one healthy job to its end."""
    dice = random.Random(f"{seed}/{number}/healthy")
    life, world = LIVES[number % len(LIVES)], dice.choice((2, 3, 4))
    outcome = Outcome(number, seed, life, f"x{world}")
    arguments = ["--life", life, "--seed", f"{seed}/{number}"]
    program = str(ROOT / "tools" / "early_job.py")
    directory = _start(jobs, place, program, arguments, world)
    until_s, alive = time.monotonic() + HEALTHY_S, world
    try:
        while alive and time.monotonic() < until_s:
            ended = jobs.wait(0.5)
            if ended is not None:
                alive -= 1
                if ended.code:
                    outcome.false.append(f"the job itself failed: {ended}")
        time.sleep(1.0)
        outcome.words = words_of(directory)
        outcome.false += [str(word["summary"]) for word in outcome.words]
    finally:
        outcome.ended = not alive
        _finish(jobs, place, outcome)
    return outcome


def _start(jobs: Jobs, place: Path, program: str, arguments: list[str], world: int) -> Path:
    directory = place / "run"
    directory.mkdir()
    job = Job(
        program=program,
        arguments=arguments,
        world_size=world,
        directory=str(directory),
        log=str(place / "job.log"),
        environment={"HANGSCOPE": "1"},
        kill_on_failure=False,
    )
    jobs.run(job)
    return directory


def _finish(jobs: Jobs, place: Path, outcome: Outcome) -> None:
    jobs.end()
    outcome.load = os.getloadavg()[0] / (os.cpu_count() or 1)
    log = (place / "job.log").read_text("utf-8", "replace").splitlines()
    outcome.log = [line for line in log if line.startswith("[hangscope]")]


def words_of(directory: Path) -> list[dict[str, Any]]:
    """The notices and verdicts in the journals of a run directory, oldest first."""
    lines = [
        line
        for path in directory.glob("*.journal")
        for line in path.read_text("utf-8").splitlines()
    ]
    events = [json.loads(line) for line in lines if line.startswith('{"event":"')]
    found = [event for event in events if event["event"] in ("notice", "verdict")]
    return sorted(found, key=lambda event: int(event["at_ns"]))


def main() -> int:
    """Run, score, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["hangs", "healthy"])
    parser.add_argument("--count", type=int, default=200, help="jobs to run, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(
        "--stride", type=int, default=1, help="every nth number, for several at once"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="append one JSON line per job to this file")
    parser.add_argument("--table", type=Path, nargs="*", help="only print these files' figures")
    arguments = parser.parse_args()
    if arguments.table is not None:
        files = [path.read_text("utf-8").splitlines() for path in arguments.table]
        return _conclude(arguments.what, [Outcome(**json.loads(x)) for f in files for x in f])
    os.nice(5)
    outcomes = []
    with job_server(PRELOAD) as jobs:
        numbers = range(arguments.first, arguments.first + arguments.count)
        for number in numbers[:: arguments.stride]:
            with tempfile.TemporaryDirectory(prefix="early-") as name:
                run = hang if arguments.what == "hangs" else healthy
                outcome = run(number, arguments.seed, jobs, Path(name))
            if outcome is None:
                continue
            outcomes.append(outcome)
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
            after = "" if outcome.first_true_s is None else f"{outcome.first_true_s:.1f} s"
            print(f"{number:4} {outcome.kind} {outcome.what}: {outcome.told} {after}", flush=True)
            for line in outcome.false:
                print(f"     not true: {line}", flush=True)
    return _conclude(arguments.what, outcomes)


def _conclude(what: str, outcomes: list[Outcome]) -> int:
    lines, good = (_of_hangs if what == "hangs" else _of_healthy)(outcomes)
    print("\n".join(lines))
    return 0 if good else 1


def _of_hangs(outcomes: list[Outcome]) -> tuple[list[str], bool]:
    """The figures of broken jobs; a job without a true word counts as infinitely late."""
    told = [outcome for outcome in outcomes if outcome.told != "untold"]
    times = sorted(_seconds(outcome) for outcome in told)
    median = statistics.median(times)
    ninety = times[max(0, -(-9 * len(times) // 10) - 1)]
    load = statistics.median(outcome.load for outcome in outcomes)
    lines = [
        f"- {len(outcomes)} jobs; {len(outcomes) - len(told)} that nothing tells from a good one; "
        f"{load:.1f} runnable processes per core",
        f"- from the last progress to the first true word: median {median:.1f} s, "
        f"90 % within {ninety:.1f} s, longest {times[-1]:.1f} s",
        f"- a notice first in {sum(outcome.told == 'notice' for outcome in told)}; "
        f"jobs with a word that is not true: {sum(bool(outcome.false) for outcome in outcomes)}",
        "",
        *_table(told),
    ]
    return lines, median <= MEDIAN_S and ninety <= NINETY_S


def _table(outcomes: list[Outcome]) -> Iterator[str]:
    yield "| fault | jobs | notice first | median s | longest s | not true |"
    yield "|---|---|---|---|---|---|"
    by_kind = defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome)
    for kind, some in sorted(by_kind.items()):
        times = [_seconds(outcome) for outcome in some]
        notices = sum(outcome.told == "notice" for outcome in some)
        false = sum(bool(outcome.false) for outcome in some)
        yield (
            f"| {kind} | {len(some)} | {notices} | {statistics.median(times):.1f} "
            f"| {max(times):.1f} | {false} |"
        )


def _of_healthy(outcomes: list[Outcome]) -> tuple[list[str], bool]:
    """The figures of healthy jobs."""
    lines = ["| life | jobs | with a notice | with a verdict |", "|---|---|---|---|"]
    noticed = [o for o in outcomes if any(word["event"] == "notice" for word in o.words)]
    accused = [o for o in outcomes if any(word["event"] == "verdict" for word in o.words)]
    for life in LIVES:
        counts = [sum(o.kind == life for o in some) for some in (outcomes, noticed, accused)]
        lines.append(f"| {life} | " + " | ".join(map(str, counts)) + " |")
    share = 100 * len(noticed) / max(1, len(outcomes))
    load = statistics.median(outcome.load for outcome in outcomes)
    lines.append(
        f"\n{len(outcomes)} jobs: a notice in {share:.1f} %, a verdict in {len(accused)}; "
        f"{load:.1f} runnable processes per core"
    )
    return lines, share <= FALSE_PERCENT and not accused


def _seconds(outcome: Outcome) -> float:
    return float("inf") if outcome.first_true_s is None else outcome.first_true_s


if __name__ == "__main__":
    sys.exit(main())
