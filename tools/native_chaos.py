"""Breaks real NCCL jobs without HangScope, and scores what it makes of what torch leaves behind.

    python -m tools.native_chaos run FOLDER --runs 60 --seed 1    # on a machine with a GPU
    python -m tools.native_chaos score FOLDER                     # anywhere

The jobs and faults are those of `tools.chaos`. What each job leaves is its log and the dumps that
NCCL's watchdogs wrote when their time was over. Both are kept, with the truth beside them, and are
judged later: the dumps alone, the log alone, and both together.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.load import load_trace
from tools.chaos import arguments_of
from tools.chaos_faults import CALLS, HEALTHY, ONLY, OUTSIDE, Draw, draw
from tools.forked_jobs import Job, Jobs, job_server
from tools.record_fixture import PRELOAD, ROOT

LIMIT_S = 8.0
"""Timeout of the process groups."""
GIVE_UP_S = 75.0
STEPS = 40
WORLD = 4
DUMPS, LOG, TRUTH = "dumps", "job.log", "truth.json"
EVIDENCE = {"dumps": (DUMPS,), "log": (LOG,), "dumps and log": (DUMPS, LOG)}
SCORES = ("right", "tie", "undecided", "nothing", "wrong")


def drawn(number: int, seed: int) -> Draw:
    """A run of `tools.chaos` with a fault and few ranks; the ranks may have to share a GPU."""
    truth = draw(number, seed)
    for attempt in range(1000, 9000, 1000):
        if truth.fault not in HEALTHY:
            break
        truth = replace(draw(number + attempt, seed), number=number)
    rank = truth.rank % WORLD
    if truth.kind in ONLY.get("skip-send", ()) and truth.fault == "skip-send":
        rank = truth.rank % (WORLD - 1)
    if truth.fault == "skip-recv":
        rank = 1 + truth.rank % (WORLD - 1)
    return replace(truth, world=WORLD, rank=rank)


def run(truth: Draw, folder: Path, jobs: Jobs, device: str) -> None:
    """Run one job until all its ranks have ended, or the time limit; keep what it left."""
    dumps = folder / DUMPS
    dumps.mkdir(parents=True)
    stem = str(dumps / "nccl_trace_rank_")
    jobs.run(
        Job(
            program=str(ROOT / "tools" / "chaos_job.py"),
            arguments=[*arguments_of(_by_itself(truth), STEPS, device), "--limit", str(LIMIT_S)],
            world_size=truth.world,
            directory=str(folder / "unused"),
            log=str(folder / LOG),
            environment={
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
                "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
                "TORCH_FR_BUFFER_SIZE": "2000",
                "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": stem,
                "TORCH_FR_DUMP_TEMP_FILE": stem,
                "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "3000",
            },
            kill_on_failure=False,
        )
    )
    began_s = time.monotonic()
    alive = truth.world
    try:
        while alive and time.monotonic() - began_s < GIVE_UP_S:
            ended = jobs.wait(0.1)
            alive -= ended is not None
            if alive == 1 and truth.fault in WAITS_FOR_EVER:
                break  # the others have left what they leave
    finally:
        jobs.end()
    (folder / TRUTH).write_text(json.dumps(asdict(truth)))


def _by_itself(truth: Draw) -> Draw:
    """The same fault, with a signal from outside sent by the rank itself, at its place."""
    return replace(truth, fault=f"self-{truth.fault}") if truth.fault in OUTSIDE else truth


WAITS_FOR_EVER = frozenset({
    "stop", "sleep", "spin", "gil", "lock", "child", "feeder", "store", "hook", "late",
})  # fmt: skip
"""Faults whose rank never ends by itself."""


def judge(truth: Draw, paths: list[Path]) -> tuple[str, str]:
    """The score of one kind of evidence, and the verdict in words."""
    given = [path for path in paths if path.is_file() or any(path.iterdir())]
    if not given:
        return "nothing", "no evidence"
    diagnosis = diagnose(load_trace(given))
    culprits = tuple(sorted(diagnosis.culprits))
    words = f"{diagnosis.verdict.value} {list(culprits)} {diagnosis.confidence.value}"
    if culprits == (truth.rank,):
        return "right", words
    ambiguous = diagnosis.confidence.value == "ambiguous"
    if not culprits or (ambiguous and truth.rank in culprits):
        tie = truth.fault in (*CALLS, "skip-send", "skip-recv") and len(culprits) == 2
        return ("tie" if tie else "undecided"), words
    return "wrong", words


def score(folder: Path) -> str:
    """Judge all runs of a folder; returns tables as Markdown."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in EVIDENCE}
    lines = []
    for path in sorted(folder.glob(f"*/{TRUTH}")):
        truth = Draw(**json.loads(path.read_text()))
        cells = []
        for kind, names in EVIDENCE.items():
            result, words = judge(truth, [path.parent / name for name in names])
            counts[kind][result] += 1
            cells.append(f"{result}: {words}")
        name, where = path.parent.name, f"{truth.kind} {truth.fault} on {truth.rank}"
        lines.append(f"| {name} | {where} | {' | '.join(cells)} |")
    head = f"| evidence | {' | '.join(SCORES)} |\n|{'---|' * (len(SCORES) + 1)}"
    rows = [
        f"| {kind} | {' | '.join(str(count[name]) for name in SCORES)} |"
        for kind, count in counts.items()
    ]
    every = f"| run | fault | {' | '.join(EVIDENCE)} |\n|{'---|' * (len(EVIDENCE) + 2)}"
    return "\n".join([head, *rows, "", every, *lines])


def main() -> int:
    """Run or score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["run", "score"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    arguments = parser.parse_args()
    if arguments.what == "score":
        print(score(arguments.folder))
        return 0
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking must not prevent the fork
    with job_server(PRELOAD) as jobs:
        for number in range(arguments.first, arguments.first + arguments.runs):
            truth = drawn(number, arguments.seed)
            folder = arguments.folder / f"{arguments.seed}-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            run(truth, folder, jobs, arguments.device)
            left = len(list((folder / DUMPS).iterdir()))
            print(f"{number:4} {truth.kind} {truth.fault} on rank {truth.rank}: {left} dumps")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
