"""Soak: random collectives in random groups from several threads, restarts and kills.

    python -m tools.soak --minutes 30

Jobs of real processes on Gloo run one after another until the time is over. What each thread of
each rank does follows from a seed, so this program can work out by itself what must be on record:

* every record of every rank is what that rank was due to issue at that place, also after a kill;
* the running hashes of a group's members agree wherever their sequence numbers do;
* a job's results are bit for bit those of the same job without HangScope;
* memory, threads and descriptors do not grow more than they do without HangScope. A leak grows
  again when the same job is run again; growth that does not recur is not a leak (Gloo closes its
  sockets in its own time).

A job that fails while Gloo connects, with or without HangScope, is void and counted as such. The
exit status is 0 if all of this held.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.ports import free_port
from tools.soak_job import Plan, rank_main, steps_of

MEMORY_SLACK_MIB = 24.0
"""A leak is more growth than this in addition to that of the same job without HangScope. (The
recorder's own tables, which are bounded, fill at the start of a job.)"""

COUNT_SLACK = 4
"""Tolerance for descriptors and threads, as those of Gloo and of the file store come and go by
themselves. A leaked process group holds more than that."""
JOB_TIMEOUT_S = 900.0
_GLOO_CONNECTING = re.compile(
    r"connectFullMesh|Connection (?:refused|reset|closed)|Gloo connect|[Tt]imed out waiting"
)


@dataclass(slots=True)
class Tally:
    """Counts and failures so far."""

    jobs: int = 0
    killed: int = 0
    restarts: int = 0
    void: int = 0
    again: int = 0
    """Jobs run a second time because something seemed to grow."""
    records: int = 0
    groups: int = 0
    culprits_right: int = 0
    not_named: list[str] = field(default_factory=list)
    """Verdicts that did not name exactly the killed rank."""
    worst_growth_mib: float = 0.0
    wrong: list[str] = field(default_factory=list)


# -- outside -------------------------------------------------------------------------------------


def run_job(plan: Plan, folder: Path, *, record: bool, victim: int | None = None) -> list[Any]:
    """Run a job; returns what each rank wrote at its end (None if it was killed)."""
    folder.mkdir(parents=True)
    port = free_port()
    processes = []
    for rank in range(plan.size):
        env = {k: v for k, v in os.environ.items() if not k.startswith("HANGSCOPE")}
        env |= {
            "RANK": str(rank), "WORLD_SIZE": str(plan.size), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(plan.size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        if record:
            env |= {
                "HANGSCOPE": "1", "HANGSCOPE_DIR": str(folder / "run"), "HANGSCOPE_MONITOR": "0",
                "HANGSCOPE_BUFFER": "2000",
            }  # fmt: skip
        command = [sys.executable, "-m", "tools.soak", "--rank", json.dumps(asdict(plan)),
                   "--folder", str(folder)]  # fmt: skip
        with open(folder / f"log{rank}", "wb") as log:
            processes.append(
                subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        if victim is not None:
            time.sleep(random.Random(plan.seed).uniform(7.0, 14.0))
            processes[victim].send_signal(signal.SIGKILL)
            time.sleep(3.0)
            for process in processes:
                process.kill()
        deadline_s = time.monotonic() + JOB_TIMEOUT_S
        for process in processes:
            process.wait(timeout=max(0.1, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass  # results not written by now are missing below
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    results = []
    for rank in range(plan.size):
        path = folder / f"rank{rank}.json"
        results.append(json.loads(path.read_text()) if path.exists() else None)
    return results


def wrong_records(plan: Plan, folder: Path, *, whole: bool, tally: Tally) -> list[str]:
    """Compare every ring with the plan; ``whole``: no record may be missing at the end."""
    from hangscope.trace.model import State
    from hangscope.trace.rings.read import read_ring

    wrong = []
    expected: dict[tuple[int, int, int], list[tuple[str, int]]] = {}
    for generation in range(plan.generations):
        for thread in range(plan.threads):
            for group, op, numel in steps_of(plan, generation, thread):
                key = (generation, thread, group)
                expected.setdefault(key, []).append((op, 0 if op == "barrier" else numel))
    hashes: dict[tuple[int, str, int], int] = {}
    for path in sorted((folder / "run").glob("*.ring")):
        fragment = read_ring(path)
        rank = fragment.facts.rank
        # When a rank is killed, each of its threads may be writing a record.
        allowed = 0 if whole else plan.threads
        if fragment.facts.dropped > allowed:
            wrong.append(f"rank {rank}: {fragment.facts.dropped} records lost")
        if fragment.warnings and not (fragment.facts.dropped and allowed):
            wrong.append(f"rank {rank}: {fragment.warnings}")
        keys = _keys(fragment.groups)
        tally.groups += len(keys)
        for row in fragment.records:
            place = keys.get(int(row["group"]))
            if place is None:
                continue
            tally.records += 1
            signature = fragment.signatures[row["signature"]]
            sizes: Any = signature.input_sizes or ((),)
            numel = int(sizes[0][0]) if signature.op != "barrier" and sizes[0] else 0
            seq = int(row["collective_seq"])
            plans = expected.get(place, [])
            if not 0 < seq <= len(plans) or plans[seq - 1] != (signature.op, numel):
                wrong.append(f"rank {rank} {place} #{seq}: {signature.op} of {numel}")
            if whole and int(row["state"]) != State.COMPLETED:
                wrong.append(f"rank {rank} {place} #{seq}: not completed")
            name = f"{place}"
            if hashes.setdefault((0, name, seq), int(row["history"])) != int(row["history"]):
                wrong.append(f"rank {rank} {place} #{seq}: histories differ")
        for member in fragment.members:
            place = keys.get(int(member["group"]))
            if place is None:
                continue
            if whole and int(member["enqueued"]) != len(expected.get(place, [])):
                wrong.append(f"rank {rank} {place}: {member['enqueued']} issued")
    return wrong[:20]


def _keys(groups: Any) -> dict[int, tuple[int, int, int]]:
    """(generation, thread, group) of each of the plan's groups, from its description."""
    keys = {}
    for index, group in enumerate(groups):
        numbers = group.desc.split(".")
        if len(numbers) == 3 and all(number.isdigit() for number in numbers):
            keys[index] = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
    return keys


def soak(minutes: float, seed: int, say: Any = print) -> Tally:
    """Run jobs for ``minutes``."""
    tally = Tally()
    rng = random.Random(seed)
    deadline_s = time.monotonic() + minutes * 60
    base = Path(tempfile.mkdtemp(prefix="hangscope-soak-"))
    while time.monotonic() < deadline_s and len(tally.wrong) < 20:
        kind = ("clean", "kill", "restart")[tally.jobs % 3]
        plan = Plan(
            seed=rng.randrange(1 << 30),
            size=rng.choice((2, 3, 4)),
            threads=rng.choice((1, 2, 3)),
            operations=20_000 if kind == "kill" else rng.choice((600, 1500, 3000)),
            kind=kind,
            generations=3 if kind == "restart" else 1,
        )
        folder = base / str(tally.jobs)
        began_s = time.monotonic()
        wrong = _one(plan, folder, tally)
        tally.jobs += 1
        tally.wrong += [f"job {tally.jobs} {plan}: {text}" for text in wrong]
        say(
            f"{tally.jobs:4d} {kind:8s} {plan.size} ranks {plan.threads} threads "
            f"{time.monotonic() - began_s:5.0f} s  {'ok' if not wrong else wrong[:3]}",
            flush=True,
        )
        if wrong:
            say(f"     kept: {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return tally


def _one(plan: Plan, folder: Path, tally: Tally) -> list[str]:
    if plan.kind == "kill":
        victim = plan.seed % plan.size
        run_job(plan, folder / "on", record=True, victim=victim)
        tally.killed += 1
        said = _said_of(folder / "on" / "run", victim)
        tally.culprits_right += not said
        tally.not_named += [f"job {tally.jobs + 1}: {said}"] if said else []
        return wrong_records(plan, folder / "on", whole=False, tally=tally)
    wrong, grown = _against_twin(plan, folder, tally)
    if grown and not wrong:
        # A leak recurs every time.
        tally.again += 1
        wrong, again = _against_twin(plan, folder / "again", tally)
        wrong += [text for text in again if text in grown]
    return wrong


def _against_twin(plan: Plan, folder: Path, tally: Tally) -> tuple[list[str], list[str]]:
    """Run a job with and without HangScope; returns (errors, what seems to have grown)."""
    on = run_job(plan, folder / "on", record=True)
    off = run_job(plan, folder / "off", record=False)
    tally.restarts += plan.generations - 1
    if (None in on and _gloo_failed(folder / "on", plan.size)) or None in off:
        tally.void += 1
        return [], []
    wrong = wrong_records(plan, folder / "on", whole=None not in on, tally=tally)
    grown = []
    for rank, (with_it, without) in enumerate(zip(on, off, strict=True)):
        if with_it is None:
            wrong.append(f"rank {rank} did not finish, without HangScope it did")
            continue
        if with_it["digest"] != without["digest"]:
            wrong.append(f"rank {rank}: another result than without HangScope")
        growth = _growth(with_it, "rss_mib") - _growth(without, "rss_mib")
        tally.worst_growth_mib = max(tally.worst_growth_mib, growth)
        if growth > MEMORY_SLACK_MIB:
            grown.append(f"rank {rank}: memory grew more than without HangScope")
        grown += [
            f"rank {rank}: {what} grew more than without HangScope"
            for what in ("threads", "descriptors")
            if _growth(with_it, what) > max(0.0, _growth(without, what)) + COUNT_SLACK
        ]
    return wrong, grown


def _gloo_failed(folder: Path, size: int) -> bool:
    """Whether a job ended because Gloo could not connect, without a report of HangScope."""
    logs = [(folder / f"log{rank}").read_text("utf-8", "replace") for rank in range(size)]
    return any(map(_GLOO_CONNECTING.search, logs)) and not any(
        "[hangscope]" in log or "hangscope/recording" in log for log in logs
    )


def _growth(result: Any, what: str) -> float:
    return float(result["last"][what]) - float(result["first"][what])


def _said_of(run: Path, victim: int) -> str:
    """The verdict on a run if it does not name exactly the victim; else empty."""
    from hangscope.diagnosis import diagnose
    from hangscope.trace.load import load_trace

    if not any(run.glob("*.ring")):
        return f"rank {victim} was killed before any had begun to record"
    found = diagnose(load_trace([run]))
    if tuple(found.culprits) == (victim,):
        return ""
    return f"rank {victim} was killed; {found.verdict} ({found.confidence}): {found.summary}"


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank_main(
            Plan(**json.loads(arguments.rank)), str(arguments.folder / "store"), arguments.folder
        )
        return 0
    print(f"seed {arguments.seed}", flush=True)
    tally = soak(arguments.minutes, arguments.seed)
    print(
        f"{tally.jobs} jobs, {tally.killed} killed (culprit named in {tally.culprits_right}), "
        f"{tally.restarts} restarts, {tally.void} void, {tally.again} run again, "
        f"{tally.records} records and {tally.groups} groups checked, "
        f"worst growth {tally.worst_growth_mib:.1f} MiB beyond the same job without HangScope"
    )
    for text in tally.not_named:
        print("not named:", text)
    for text in tally.wrong:
        print("WRONG", text)
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
