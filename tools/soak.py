"""Soak: random collectives in random groups from several threads, restarts and kills.

    python -m tools.soak --minutes 30

Jobs of real processes on Gloo follow one another until the time is over. What each thread of each
rank does follows from a seed, so this program knows without being told what must be on record:

* every record of every rank is what that rank was to issue at that place, kills included;
* the running hashes of a group's members agree wherever their numbers do;
* a job's results are bit for bit those of the same job without HangScope;
* memory, threads and descriptors do not grow more than they do without it.

Exit status 0 when all that held.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OPS = ("all_reduce", "broadcast", "all_gather", "_all_gather_base", "reduce", "barrier")
MAX_NUMEL = 4096
GROUPS_PER_THREAD = 3
MEMORY_SLACK_MIB = 24.0
"""More growth than this beyond that of the same job without HangScope is a leak. The recorder's own
tables fill while a job is young; they are bounded."""

COUNT_SLACK = 4
"""Of descriptors and threads: those of Gloo and of the file store come and go on their own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One job: everything in it follows from these numbers."""

    seed: int
    size: int
    threads: int
    operations: int
    """Per thread."""
    kind: str
    """``clean``, ``restart`` (all groups are destroyed and made again) or ``kill``."""
    generations: int = 1


@dataclass(slots=True)
class Tally:
    """What the soak has seen so far."""

    jobs: int = 0
    killed: int = 0
    restarts: int = 0
    records: int = 0
    groups: int = 0
    culprits_right: int = 0
    worst_growth_mib: float = 0.0
    wrong: list[str] = field(default_factory=list)


def members_of(plan: Plan, generation: int, thread: int, group: int) -> list[int]:
    """The ranks of a group: never fewer than two."""
    rng = random.Random(f"{plan.seed}/{generation}/{thread}/{group}/members")
    return sorted(rng.sample(range(plan.size), rng.randint(2, plan.size)))


def steps_of(plan: Plan, generation: int, thread: int) -> list[tuple[int, str, int]]:
    """What a thread does, the same on every rank: (group, operation, number of elements)."""
    rng = random.Random(f"{plan.seed}/{generation}/{thread}/steps")
    return [
        (rng.randrange(GROUPS_PER_THREAD), rng.choice(OPS), rng.randint(1, MAX_NUMEL))
        for _ in range(plan.operations)
    ]


# -- inside a rank -------------------------------------------------------------------------------


def rank_main(plan: Plan, store: str, results: Path) -> None:
    """One rank of one job."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    digest = hashlib.sha256()
    first: dict[str, float] = {}
    for generation in range(plan.generations):
        dist.init_process_group(
            "gloo", init_method=f"file://{store}.{generation}", rank=rank, world_size=plan.size
        )
        groups = {
            (thread, group): dist.new_group(
                members_of(plan, generation, thread, group),
                group_desc=f"{generation}.{thread}.{group}",
            )
            for thread in range(plan.threads)
            for group in range(GROUPS_PER_THREAD)
        }
        sums: dict[int, bytes] = {}

        def work(
            thread: int, generation: int = generation, groups: Any = groups, sums: Any = sums
        ) -> None:
            sums[thread] = _thread_main(plan, generation, thread, groups, rank)

        workers = [threading.Thread(target=work, args=(t,)) for t in range(plan.threads)]
        if generation == 0:
            dist.barrier()
            first = usage()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for thread in sorted(sums):
            digest.update(sums[thread])
        dist.barrier()
        dist.destroy_process_group()
        del groups
    out = {"digest": digest.hexdigest(), "first": first, "last": usage()}
    (results / f"rank{rank}.json").write_text(json.dumps(out))


def _thread_main(plan: Plan, generation: int, thread: int, groups: Any, rank: int) -> bytes:
    import torch
    import torch.distributed as dist

    digest = hashlib.sha256()
    for index, (group, op, numel) in enumerate(steps_of(plan, generation, thread)):
        members = members_of(plan, generation, thread, group)
        if rank not in members:
            continue
        handle = groups[thread, group]
        value = torch.full((numel,), float(rank + index % 97))
        is_async = index % 3 == 0
        work: Any = None
        outputs = [value]
        if op == "all_reduce":
            work = dist.all_reduce(value, group=handle, async_op=is_async)
        elif op == "broadcast":
            work = dist.broadcast(value, members[0], group=handle, async_op=is_async)
        elif op == "reduce":
            work = dist.reduce(value, members[-1], group=handle, async_op=is_async)
            outputs = [value] if rank == members[-1] else []
        elif op == "all_gather":
            outputs = [torch.empty(numel) for _ in members]
            work = dist.all_gather(outputs, value, group=handle, async_op=is_async)
        elif op == "_all_gather_base":
            outputs = [torch.empty(numel * len(members))]
            work = dist.all_gather_into_tensor(outputs[0], value, group=handle, async_op=is_async)
        else:
            work = dist.barrier(group=handle, async_op=is_async)
        if work is not None:
            work.wait()
        for output in outputs:
            digest.update(output.numpy().tobytes())
    return digest.digest()


def usage() -> dict[str, float]:
    """Resident memory (MiB), threads and open descriptors of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_mib": pages * resource.getpagesize() / 2**20,
        "threads": float(len(os.listdir("/proc/self/task"))),
        "descriptors": float(len(os.listdir("/proc/self/fd"))),
    }


# -- outside -------------------------------------------------------------------------------------


def run_job(plan: Plan, folder: Path, *, record: bool, victim: int | None = None) -> list[Any]:
    """Run a job; returns what each rank wrote at its end (None where it was killed)."""
    folder.mkdir(parents=True)
    port = _free_port()
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
        for process in processes:
            process.wait(timeout=600)
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
    """Compare every ring with the plan; ``whole``: nothing may be missing at the end."""
    from hangscope.trace.from_ring import read_ring
    from hangscope.trace.model import State

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
        if fragment.facts.dropped:
            wrong.append(f"rank {rank}: {fragment.facts.dropped} records lost")
        if fragment.warnings:
            wrong.append(f"rank {rank}: {fragment.warnings}")
        keys = _keys(fragment.groups)
        tally.groups += len(keys)
        for row in fragment.records:
            key = keys.get(int(row["group"]))
            if key is None:
                continue
            tally.records += 1
            signature = fragment.signatures[row["signature"]]
            sizes = signature.input_sizes or ((),)
            numel = 0 if signature.op == "barrier" else int(sizes[0][0])
            seq = int(row["collective_seq"])
            plans = expected.get(key, [])
            if not 0 < seq <= len(plans) or plans[seq - 1] != (signature.op, numel):
                wrong.append(f"rank {rank} {key} #{seq}: {signature.op} of {numel}")
            if whole and int(row["state"]) != State.COMPLETED:
                wrong.append(f"rank {rank} {key} #{seq}: not completed")
            name = f"{key}"
            if hashes.setdefault((0, name, seq), int(row["history"])) != int(row["history"]):
                wrong.append(f"rank {rank} {key} #{seq}: histories differ")
        for member in fragment.members:
            key = keys.get(int(member["group"]))
            if key is not None and whole and int(member["enqueued"]) != len(expected.get(key, [])):
                wrong.append(f"rank {rank} {key}: {member['enqueued']} issued")
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
    """Run jobs until the time is over."""
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
        tally.culprits_right += _culprits(folder / "on" / "run") == (victim,)
        return wrong_records(plan, folder / "on", whole=False, tally=tally)
    on = run_job(plan, folder / "on", record=True)
    off = run_job(plan, folder / "off", record=False)
    tally.restarts += plan.generations - 1
    wrong = wrong_records(plan, folder / "on", whole=True, tally=tally)
    for rank, (with_it, without) in enumerate(zip(on, off, strict=True)):
        if with_it is None or without is None:
            wrong.append(f"rank {rank} did not finish")
            continue
        if with_it["digest"] != without["digest"]:
            wrong.append(f"rank {rank}: another result than without HangScope")
        growth = _growth(with_it, "rss_mib") - _growth(without, "rss_mib")
        tally.worst_growth_mib = max(tally.worst_growth_mib, growth)
        if growth > MEMORY_SLACK_MIB:
            wrong.append(f"rank {rank}: grew {growth:.0f} MiB more than without HangScope")
        for what in ("threads", "descriptors"):
            if _growth(with_it, what) > _growth(without, what) + COUNT_SLACK:
                wrong.append(f"rank {rank}: {what} grew")
    return wrong


def _growth(result: Any, what: str) -> float:
    return float(result["last"][what]) - float(result["first"][what])


def _culprits(run: Path) -> tuple[int, ...]:
    from hangscope.diagnosis import diagnose
    from hangscope.trace.load import load_trace

    return tuple(diagnose(load_trace([run])).culprits)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        f"{tally.restarts} restarts, {tally.records} records and {tally.groups} groups checked, "
        f"worst growth {tally.worst_growth_mib:.1f} MiB beyond the same job without HangScope"
    )
    for text in tally.wrong:
        print("WRONG", text)
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
