"""Breaks real jobs at random and scores what HangScope reports against the injected fault.

``python -m tools.chaos --runs 300 --seed 1``. Each run is a job of 2 to 8 real processes (DDP,
FSDP2, tensor x data parallel, pipeline) with one fault at a random moment on a random rank, or no
fault. The first verdict that the monitor printed to the job's own log is scored, and when.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hangscope.replay import Expected, write_fixture
from hangscope.ring.checks import RingError
from hangscope.ring.reader import RingReader
from tools.forkserver import Job, Server
from tools.record_fixture import PRELOAD, ROOT, look_twice

TIMEOUT_S = 3.0
GIVE_UP_S = 25.0
"""Time after the start of a job at which it counts as not reported."""
PROGRAM = ROOT / "tools" / "chaos_job.py"
KINDS = ("ddp", "fsdp", "tp", "pipeline")
MISMATCH = ("collective_mismatch", "shape_mismatch", "dtype_mismatch")
DRIFT = (*MISMATCH, "missing_rank", "deadlock_cycle", "rank_exited")
"""Verdicts that fit one missing or extra operation, depending on what comes next."""

FAULTS: dict[str, tuple[str, ...]] = {
    "none": ("healthy",),
    "slow": ("healthy",),
    "pause": ("healthy",),
    "compute": ("healthy",),
    "kill": ("rank_crashed",),
    "segfault": ("rank_crashed",),
    "raise": ("rank_crashed",),
    "exit-3": ("rank_crashed",),
    "os-exit": ("rank_exited",),
    "early-end": ("rank_exited",),
    "reset": ("rank_crashed",),
    "memory": ("rank_crashed",),
    "abort": ("rank_crashed",),
    "term": ("rank_crashed",),
    "stop": ("missing_rank", "stuck_collective"),
    "sleep": ("missing_rank",),
    "spin": ("missing_rank",),
    "gil": ("missing_rank",),
    "lock": ("missing_rank",),
    "child": ("missing_rank",),
    "feeder": ("missing_rank",),
    "store": ("missing_rank",),
    "hook": ("missing_rank",),
    "late": ("missing_rank",),
    "early-eval": (*DRIFT, "p2p_unmatched"),
    "guarded": DRIFT,
    "skip": DRIFT,
    "extra": DRIFT,
    "op": ("collective_mismatch",),
    "shape": ("shape_mismatch",),
    "dtype": ("dtype_mismatch",),
    "reduce-op": ("argument_mismatch",),
    "swap": ("deadlock_cycle", *MISMATCH),
    "skip-send": ("p2p_unmatched", "missing_rank", "deadlock_cycle", "collective_mismatch"),
    "skip-recv": ("p2p_unmatched", "missing_rank", "deadlock_cycle", "collective_mismatch"),
}
"""Map from a fault to the verdicts that are right for it."""
HEALTHY = ("none", "slow", "pause", "compute")
OUTSIDE = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
CALLS = ("skip", "extra", "op", "shape", "dtype", "swap", "reduce-op", "guarded", "early-eval")
ONLY = {"skip-send": ("pipeline",), "skip-recv": ("pipeline",), "hook": ("ddp",)}
NOT = {"swap": ("pipeline",), "early-end": ()}


@dataclass(frozen=True, slots=True)
class Draw:
    """The truth of one run."""

    number: int
    kind: str
    world: int
    fault: str
    rank: int
    step: int
    point: int
    after_s: float
    """For signals from outside: delay after the first collective."""
    kill_on_failure: bool


@dataclass(slots=True)
class Result:
    """Outcome of one run."""

    draw: Draw
    verdict: str = "healthy"
    culprits: tuple[int, ...] = ()
    confidence: str = ""
    said_after_s: float | None = None
    summary: str = ""
    ended: bool = False
    score: str = ""
    problems: list[str] = field(default_factory=list)


def draw(number: int, seed: int) -> Draw:
    """Draw one run; deterministic for the same arguments."""
    dice = random.Random(f"{seed}/{number}")
    kind = dice.choice(KINDS)
    fault = dice.choice(
        [
            name
            for name in FAULTS
            for _ in range(3 if name == "none" else 1)
            if kind in ONLY.get(name, KINDS) and kind not in NOT.get(name, ())
        ]
    )
    sizes = {"ddp": (2, 3, 4, 6), "fsdp": (2, 4, 5), "tp": (4, 6, 8), "pipeline": (3, 4, 6)}
    world = dice.choice(sizes[kind])
    rank = dice.randrange(world)
    if fault == "skip-send":
        rank = dice.randrange(world - 1)
    if fault == "skip-recv":
        rank = dice.randrange(1, world)
    return Draw(
        number=number,
        kind=kind,
        world=world,
        fault=fault,
        rank=rank,
        step=dice.randrange(1, 12),
        point=dice.randrange(0, 3) if fault in CALLS else dice.randrange(0, 4),
        after_s=dice.uniform(0.1, 1.5),
        kill_on_failure=dice.random() < 0.6,
    )


def run(
    truth: Draw,
    place: Path,
    server: Server,
    keep: Path | None = None,
    device: str = "cpu",
    give_up_s: float = GIVE_UP_S,
) -> Result:
    """Run one job until its verdict or the time limit; keeps failed runs in ``keep``."""
    directory = place / "run"
    directory.mkdir()
    log = place / "job.log"
    steps = 12 if truth.fault in HEALTHY else 60
    server.run(
        Job(
            program=str(PROGRAM),
            arguments=arguments_of(truth, steps, device),
            world_size=truth.world,
            directory=str(directory),
            log=str(log),
            environment={"HANGSCOPE": "1", "HANGSCOPE_TIMEOUT": str(TIMEOUT_S)},
            kill_on_failure=truth.kill_on_failure,
        )
    )
    result = Result(truth)
    try:
        _follow(truth, directory, server, result, give_up_s)
        result.score = score(truth, result)
        if keep is not None and result.score not in ("exact", "tie"):
            _keep(place, keep, truth)  # now, while the processes are still in that state
    finally:
        server.end()
    return result


def arguments_of(truth: Draw, steps: int, device: str) -> list[str]:
    """The job's command line."""
    return [
        "--kind", truth.kind, "--fault", truth.fault, "--rank", str(truth.rank),
        "--step", str(truth.step), "--point", str(truth.point), "--steps", str(steps),
        "--device", device,
    ]  # fmt: skip


def _follow(truth: Draw, directory: Path, server: Server, result: Result, give_up_s: float) -> None:
    began_s = time.monotonic()
    alive, struck, ended_at_s, moving_since_s = truth.world, False, 0.0, 0.0
    while time.monotonic() - began_s < give_up_s:
        event = server.wait(0.05)
        if event is not None and event["event"] == "exit":
            alive -= 1
            if not alive:
                ended_at_s = time.monotonic()
                result.ended = True
        now_s = time.monotonic()
        if truth.fault in OUTSIDE and not struck:
            if not moving_since_s and _newest_ns(directory):
                moving_since_s = now_s
            if moving_since_s and now_s - moving_since_s > truth.after_s and alive == truth.world:
                server.signal(truth.rank, OUTSIDE[truth.fault])
                struck = True
        said = _first_verdict(directory)
        if said is not None:
            result.verdict = str(said["verdict"])
            result.culprits = tuple(sorted(said["culprits"]))
            result.summary = str(said["summary"])
            result.confidence = _confidence(directory.parent / "job.log", result.summary)
            stalled_ns = _newest_ns(directory)
            if stalled_ns:
                result.said_after_s = (int(said["at_ns"]) - stalled_ns) / 1e9
            return
        if ended_at_s and now_s - ended_at_s > 4.0:
            return


def _first_verdict(directory: Path) -> dict[str, Any] | None:
    for path in directory.glob("*.journal"):
        for line in path.read_text("utf-8").splitlines():
            if '"event":"verdict"' in line:
                found: dict[str, object] = json.loads(line)
                return found
    return None


def _confidence(log: Path, summary: str) -> str:
    """Confidence according to the report's text, since the journal keeps only the verdict."""
    text = log.read_text("utf-8", "replace")
    start = text.find(f"[hangscope] {summary[:60]}")
    report = text[start : text.find("[hangscope] more:", start)] if start >= 0 else ""
    return "ambiguous" if "ambiguous" in report else ""


def _newest_ns(directory: Path) -> int:
    """When the job last issued or finished an operation, in any ring; 0 before the first."""
    newest = 0
    for path in directory.glob("*.ring"):
        try:
            reader = RingReader(path)
        except (RingError, OSError):
            continue
        slots, _ = reader.slots()
        if len(slots):
            newest = max(newest, int(slots["created_ns"].max()), int(slots["completed_ns"].max()))
        reader.close()
    return newest


def score(truth: Draw, result: Result) -> str:
    """``exact``, ``tie``, ``wrong-verdict``, ``wrong-rank``, ``silent`` or ``false-alarm``."""
    if truth.fault in HEALTHY:
        return "exact" if result.verdict == "healthy" else "false-alarm"
    if result.verdict == "healthy":
        # SIGTERM to one and at once, from the launcher, to all others looks like SIGTERM to all.
        told_alike = truth.fault == "term" and truth.kill_on_failure and result.ended
        return "tie" if told_alike else "silent"
    right_verdict = result.verdict in FAULTS[truth.fault]
    if result.culprits == (truth.rank,):
        return "exact" if right_verdict else "wrong-verdict"
    halves = ("skip-send", "skip-recv")
    undecidable = truth.fault in (*CALLS, *halves)
    named = truth.rank in result.culprits and result.confidence == "ambiguous"
    if truth.fault in halves and result.verdict == "deadlock_cycle" and len(result.culprits) == 2:
        # Two stages wait for each other, whichever omitted its half, so both are on the cycle.
        named = truth.rank in result.culprits
    return "tie" if right_verdict and named and undecidable else "wrong-rank"


def table(results: Sequence[Result]) -> str:
    """The score by fault, as Markdown."""
    by_fault: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_fault[result.draw.fault].append(result)
    lines = [
        "| fault | runs | rank and verdict right | both sides named (tie) | rank right only "
        "| wrong or silent | median s |",
        "|---|---|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        some = by_fault.get(fault)
        if some:
            lines.append(_row(fault, some))
    faulty = [r for r in results if r.draw.fault not in HEALTHY]
    lines.append(_row("**all faults**", faulty))
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> str:
    """The main figures, one per line."""
    faulty = [r for r in results if r.draw.fault not in HEALTHY]
    healthy = [r for r in results if r.draw.fault in HEALTHY]
    ties = [r for r in faulty if r.score == "tie"]
    decidable = len(faulty) - len(ties)
    named = sum(r.score in ("exact", "wrong-verdict") for r in faulty)
    verdicts = sum(r.score == "exact" for r in faulty)
    alarms = sum(r.score != "exact" for r in healthy)
    times = [r.said_after_s for r in faulty if r.said_after_s is not None]
    worlds = sorted({r.draw.world for r in results})
    lines = [
        f"- {len(results)} runs, {worlds[0]} to {worlds[-1]} ranks, a timeout of {TIMEOUT_S:g} s",
        f"- exactly the injected rank: {named} of {decidable} ({100 * named / decidable:.1f} %)",
        f"- rank and verdict: {verdicts} of {decidable} ({100 * verdicts / decidable:.1f} %)",
        f"- ties, both sides named as ambiguous: {len(ties)}",
        f"- false alarms: {alarms} of {len(healthy)} healthy runs",
    ]
    if times:
        lines.append(
            f"- stall to printed verdict: median {statistics.median(times):.1f} s, "
            f"longest {max(times):.1f} s"
        )
    return "\n".join(lines)


def _row(name: str, results: Sequence[Result]) -> str:
    count = Counter(r.score for r in results)
    times = [r.said_after_s for r in results if r.said_after_s is not None]
    median = f"{statistics.median(times):.1f}" if times else ""
    bad = count["wrong-rank"] + count["silent"] + count["false-alarm"]
    return (
        f"| {name} | {len(results)} | {count['exact']} | {count['tie']} | "
        f"{count['wrong-verdict']} | {bad} | {median} |"
    )


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
        results = [_parse(line) for path in arguments.table for line in path.open()]
        print(summary(results), table(results), sep="\n\n")
        return 0
    results = []
    os.nice(5)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking must not prevent the fork
    server = Server(PRELOAD)
    for number in range(arguments.first, arguments.first + arguments.runs):
        truth = draw(number, arguments.seed)
        with tempfile.TemporaryDirectory(prefix="chaos-") as name:
            place = Path(name)
            keep = arguments.keep and arguments.keep / f"{arguments.seed}-{number}"
            result = run(truth, place, server, keep, arguments.device, arguments.give_up)
            results.append(result)
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
        what = f"{truth.kind} x{truth.world} {truth.fault} on rank {truth.rank}"
        after = "" if result.said_after_s is None else f" after {result.said_after_s:.1f} s"
        print(f"{number:4} {result.score:13} {what}: {result.verdict} {result.culprits}{after}")
        sys.stdout.flush()
    server.__exit__()
    print(summary(results), table(results), sep="\n\n")
    return 0


def _keep(place: Path, target: Path, truth: Draw) -> None:
    """Keep what is left of a failed run as a fixture with the truth as its expectation."""
    shutil.rmtree(target, ignore_errors=True)
    trace, diagnosis = look_twice(place / "run")
    expected = Expected(
        verdict=FAULTS[truth.fault][0],
        culprits=() if truth.fault in HEALTHY else (truth.rank,),
        story=f"chaos: {truth.kind} on {truth.world} ranks, {truth.fault} on rank {truth.rank}",
        recorded={
            "command": f"tools/chaos.py, run {target.name}",
            "kind": "rings",
            "world_size": truth.world,
            "point": f"step {truth.step}, place {truth.point}, {truth.after_s:.1f} s",
        },
    )
    write_fixture(
        trace, diagnosis, [place / "run"], target, redact=True, expected=expected, check=False
    )
    shutil.copy(place / "job.log", target)


def _parse(line: str) -> Result:
    fields = json.loads(line)
    fields["draw"] = Draw(**fields["draw"])
    fields["culprits"] = tuple(fields["culprits"])
    return Result(**fields)


if __name__ == "__main__":
    sys.exit(main())
