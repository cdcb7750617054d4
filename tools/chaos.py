"""Breaks real jobs at random and scores what HangScope reports against the injected fault.

``python -m tools.chaos --runs 300 --seed 1``. Each run is a job of 2 to 8 real processes (DDP,
FSDP2, tensor x data parallel, pipeline) with one fault at a random moment on a random rank, or no
fault. What the monitor prints to the job's own log is scored, and when; so is what an analysis says
some seconds later. The exit status is 1 if the scores are below the bar (`chaos_score.below_bar`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hangscope.nccl_plugin.background import prepare_plugin
from hangscope.replay import Expected, FixtureError, write_fixture
from hangscope.ring.checks import RingError
from hangscope.ring.reader import RingReader
from tools.chaos_faults import FAULTS, HEALTHY, OUTSIDE, Draw, draw
from tools.chaos_score import Answer, Result, answer_of, below_bar, summary, table
from tools.forked_jobs import Job, Jobs, job_server
from tools.record_fixture import PRELOAD, ROOT, look_twice

TIMEOUT_S = 3.0
GIVE_UP_S = 25.0
"""Time after the start of a job, or its last operation, at which it counts as not reported."""
LOOK_S = 1.0
"""Between two looks at whether a job that nothing was said about still moves."""
SETTLE_S = 5.0
"""From the first answer to the analysis: more may be printed, and what has died dies."""
ENDED_S = 4.0
"""Time for a report on a job whose processes have all ended."""
PROGRAM = ROOT / "tools" / "chaos_job.py"


def run(
    truth: Draw,
    place: Path,
    jobs: Jobs,
    keep: Path | None = None,
    device: str = "cpu",
    give_up_s: float = GIVE_UP_S,
) -> Result:
    """Run one job until its verdict or the time limit; keeps failed runs in ``keep``."""
    directory = place / "run"
    directory.mkdir()
    steps = 12 if truth.fault in HEALTHY else 60
    jobs.run(
        Job(
            program=str(PROGRAM),
            arguments=arguments_of(truth, steps, device),
            world_size=truth.world,
            directory=str(directory),
            log=str(place / "job.log"),
            environment={"HANGSCOPE": "1", "HANGSCOPE_TIMEOUT": str(TIMEOUT_S)},
            kill_on_failure=truth.kill_on_failure,
        )
    )
    result = Result(truth)
    try:
        _follow(truth, directory, jobs, result, give_up_s)
        trace, diagnosis = look_twice(directory)  # while the processes are still in that state
        result.live = _verdicts(directory)
        result.last = answer_of(diagnosis)
        if keep is not None and result.problems:
            shutil.rmtree(keep, ignore_errors=True)
            expected = _expected(truth, keep.name)
            try:
                write_fixture(
                    trace, diagnosis, [directory], keep, redact=True, expected=expected, check=False
                )
            except FixtureError as error:
                print(f"     kept as it is: {error}")
                shutil.copytree(directory, keep)
            shutil.copy(place / "job.log", keep)
    finally:
        jobs.end()
    return result


def arguments_of(truth: Draw, steps: int, device: str) -> list[str]:
    """The job's command line."""
    return [
        "--kind", truth.kind, "--fault", truth.fault, "--rank", str(truth.rank),
        "--step", str(truth.step), "--point", str(truth.point), "--steps", str(steps),
        "--device", device,
    ]  # fmt: skip


def _follow(truth: Draw, directory: Path, jobs: Jobs, result: Result, give_up_s: float) -> None:
    """Wait until there is nothing more to expect; signal the job from outside on the way."""
    alive, struck, moving_since_s, heard = truth.world, False, 0.0, 0
    end_s = until_s = time.monotonic() + give_up_s
    newest, look_s = 0, 0.0
    while (now_s := time.monotonic()) < until_s:
        ended = jobs.wait(0.05)
        if ended is not None:
            alive -= 1
            result.ended = not alive
            if result.ended:
                end_s = until_s = min(until_s, now_s + ENDED_S)
        if truth.fault in OUTSIDE and not struck:
            if not moving_since_s and newest_ns(directory):
                moving_since_s = now_s
            if moving_since_s and now_s - moving_since_s > truth.after_s and alive == truth.world:
                jobs.signal(truth.rank, OUTSIDE[truth.fault])
                struck = True
        if not heard and not result.ended and now_s >= look_s:
            look_s = now_s + LOOK_S
            if (moved := newest_ns(directory)) > newest:
                newest, end_s = moved, now_s + give_up_s  # on a busy machine it comes late
                until_s = end_s
        events = _events(directory)
        if len(events) > heard:
            until_s = min(end_s, now_s + SETTLE_S)
            stalled_ns = newest_ns(directory)
            if not heard and stalled_ns:
                result.said_after_s = (int(events[0]["at_ns"]) - stalled_ns) / 1e9
            heard = len(events)
        elif heard and until_s < end_s and newest_ns(directory) > int(events[-1]["at_ns"]):
            until_s = end_s  # it was slow, and goes on: more is to come


def _events(directory: Path) -> list[dict[str, Any]]:
    """The reports that the monitor's journal mentions."""
    journals = (path.read_text("utf-8").splitlines() for path in directory.glob("*.journal"))
    found = [
        json.loads(line) for lines in journals for line in lines if '"event":"verdict"' in line
    ]
    return sorted(found, key=lambda event: int(event["at_ns"]))


def _verdicts(directory: Path) -> list[Answer]:
    answers = []
    for event in _events(directory):
        culprits = tuple(sorted(event["culprits"]))
        confidence = str(event["confidence"])
        certain = culprits if confidence == "certain" else ()
        answers.append(
            Answer(str(event["verdict"]), culprits, confidence, str(event["summary"]), certain)
        )
    return answers


def newest_ns(directory: Path, before_ns: int | None = None) -> int:
    """When the job last issued or finished an operation, in any ring; 0 before the first.

    ``before_ns``: only what happened until then counts.
    """
    newest = 0
    for path in directory.glob("*.ring"):
        try:
            reader = RingReader(path)
        except (RingError, OSError):
            continue
        slots, _ = reader.slots()
        for times in (slots["created_ns"], slots["completed_ns"]):
            times = times if before_ns is None else times[times <= before_ns]
            newest = max(newest, int(times.max(initial=0)))
        reader.close()
    return newest


def main() -> int:
    """Run, score, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="append one JSON line per run to this file")
    parser.add_argument("--keep", type=Path, help="keep the run directories of failures here")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="Gloo or NCCL")
    parser.add_argument("--give-up", type=float, default=GIVE_UP_S, help="seconds for one run")
    parser.add_argument("--table", type=Path, nargs="*", help="only print these files' table")
    arguments = parser.parse_args()
    if arguments.table is not None:
        return _conclude([_parse(line) for path in arguments.table for line in path.open()])
    results = []
    if arguments.device == "cuda":
        prepare_plugin()  # the first job would run without it
    os.nice(5)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking must not prevent the fork
    with job_server(PRELOAD) as jobs:
        for number in range(arguments.first, arguments.first + arguments.runs):
            truth = draw(number, arguments.seed, arguments.device)
            with tempfile.TemporaryDirectory(prefix="chaos-") as name:
                keep = arguments.keep and arguments.keep / f"{arguments.seed}-{number}"
                result = run(truth, Path(name), jobs, keep, arguments.device, arguments.give_up)
            results.append(result)
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
            what = f"{truth.kind} x{truth.world} {truth.fault} on rank {truth.rank}"
            after = "" if result.said_after_s is None else f" after {result.said_after_s:.1f} s"
            first = f"{result.first.verdict} {result.first.culprits}{after}"
            print(f"{number:4} {result.score:13} {result.last_score:13} {what}: {first}")
            for line in result.problems:
                print(f"     {line}")
            sys.stdout.flush()
    return _conclude(results)


def _conclude(results: list[Result]) -> int:
    print(summary(results), table(results), sep="\n\n")
    missing = below_bar(results)
    for line in missing:
        print(f"below the bar: {line}")
    return 1 if missing else 0


def _expected(truth: Draw, name: str) -> Expected:
    """The truth as the expectation of a fixture."""
    return Expected(
        verdict=FAULTS[truth.fault][0],
        culprits=() if truth.fault in HEALTHY else (truth.rank,),
        story=f"chaos: {truth.kind} on {truth.world} ranks, {truth.fault} on rank {truth.rank}",
        recorded={
            "command": f"tools/chaos.py, run {name}",
            "kind": "rings",
            "world_size": truth.world,
            "point": f"step {truth.step}, place {truth.point}, {truth.after_s:.1f} s",
        },
    )


def _answer(fields: dict[str, Any]) -> Answer:
    fields["culprits"], fields["certain"] = tuple(fields["culprits"]), tuple(fields["certain"])
    return Answer(**fields)


def _parse(line: str) -> Result:
    fields = json.loads(line)
    return Result(
        Draw(**fields["draw"]),
        [_answer(one) for one in fields["live"]],
        _answer(fields["last"]),
        fields["said_after_s"],
        fields["ended"],
    )


if __name__ == "__main__":
    sys.exit(main())
