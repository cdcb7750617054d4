"""Faults on a real GPU: what the monitor says first, and what the analysis says in the end.

    python -m tools.gpu_faults --out FOLDER

Four ranks share the GPU (`tools.gpus`). Each fault is a job of its own (`tools.gpu_job`), three at
a time; before them, `tools.gpu_cost` runs with and without NCCL's plugin in turn. All of it takes
about four minutes. ``--device cpu`` runs on Gloo what needs no GPU, and without a GPU
``python -m tools.pretend_gpu .pretend-gpu -- python -m tools.gpu_faults --rounds 0 --out FOLDER``
runs all of it. FOLDER gets ``faults.json`` and ``runs.tar.gz``: logs, journals and rings of each
job. The exit status is 1 if a first or last answer is wrong, or one comes late that must not.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hangscope.nccl_plugin.build import ensure_plugin
from tools.chaos import newest_ns
from tools.ports import free_port

ROOT = Path(__file__).parent.parent
WORLD = 4
TIMEOUT_S = 4.0
GIVE_UP_S = 45.0
AFTER_S = 4.0
"""How long a job is left alone after the first report."""
LATEST_S = TIMEOUT_S + 2.0
"""From a job's last recorded operation to the report, where nothing but NCCL tells of the hang."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is right for a fault."""

    verdicts: tuple[str, ...]
    culprits: tuple[int, ...]
    only_gpu: bool = False
    in_time: bool = False
    """Whether it must be reported within `LATEST_S`."""


MISMATCH = ("shape_mismatch", "argument_mismatch", "collective_mismatch")
STUCK = ("missing_rank", "stuck_collective")
FAULTS = {
    "none": Expected(("healthy",), ()),
    "kernel": Expected(STUCK, (1,), only_gpu=True),
    "graph": Expected(("missing_rank",), (1,), only_gpu=True, in_time=True),
    "graph-kernel": Expected(STUCK, (1,), only_gpu=True, in_time=True),
    "foreign": Expected(("missing_rank",), (2,), only_gpu=True, in_time=True),
    "foreign-kernel": Expected(STUCK, (2,), only_gpu=True, in_time=True),
    "sigstop": Expected(STUCK, (2,)),
    "exit0": Expected(("rank_exited", "rank_crashed"), (2,)),
    "sigkill": Expected(("rank_crashed",), (2,)),
    "assert": Expected(("rank_crashed",), (1,), only_gpu=True),
    "oom": Expected(("rank_crashed",), (3,)),
    "splits": Expected(MISMATCH, (1,)),
    "shape": Expected(MISMATCH, (3,)),  # the pair beside it shows who of the two is right
    "p2p": Expected(("p2p_unmatched", "missing_rank"), (1,)),
    "sleep": Expected(("missing_rank",), (1,)),
    "raise": Expected(("rank_crashed",), (0,)),
    "kernel-plain": Expected(STUCK, (1,), only_gpu=True),
    "p2p-plain": Expected(("p2p_unmatched", "missing_rank"), (1,)),
    "sleep-plain": Expected(("missing_rank",), (1,)),
    "exit0-plain": Expected(("rank_exited", "rank_crashed"), (2,)),
}


@dataclass(slots=True)
class Outcome:
    """What was said about one job."""

    fault: str
    expected: Expected
    first: dict[str, object] = field(default_factory=dict)
    """The first live verdict in the journal."""
    line: str = ""
    """The first line of the monitor's first report."""
    after_s: float = 0.0
    """From the job's last recorded operation to that report."""
    final: dict[str, object] = field(default_factory=dict)
    """The analysis of what is left."""
    devices: int = 0
    """Ranks with a device ring."""

    @property
    def is_late(self) -> bool:
        """Whether the report came later than it must."""
        return self.expected.in_time and self.after_s > LATEST_S

    def is_right(self, said: dict[str, object]) -> bool:
        """Whether a verdict is one of those expected."""
        culprits = said.get("culprits", [])
        assert isinstance(culprits, list)
        return (
            said.get("verdict", "healthy") in self.expected.verdicts
            and tuple(sorted(culprits)) == self.expected.culprits
        )


def start(
    program: str, arguments: list[str], world: int, env: dict[str, str], log: Path
) -> list[subprocess.Popen[bytes]]:
    """One process per rank, without a launcher; all write into one log."""
    port = free_port()
    processes = []
    with log.open("ab") as file:
        for rank in range(world):
            own = {
                **os.environ, **env, "RANK": str(rank), "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            }  # fmt: skip
            command = [sys.executable, "-m", program, *arguments]
            processes.append(subprocess.Popen(command, cwd=ROOT, env=own, stdout=file, stderr=file))
    return processes


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill what is left of a job."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    for process in processes:
        process.wait()


def run_fault(fault: str, device: str, place: Path, give_up_s: float) -> Outcome:
    """Run one job with a fault until it is reported, and analyse what is left."""
    directory, log = place / fault, place / f"{fault}.log"
    outcome = Outcome(fault, FAULTS[fault])
    env = {
        "HANGSCOPE": "1", "HANGSCOPE_DIR": str(directory), "HANGSCOPE_TIMEOUT": str(TIMEOUT_S),
        "HANGSCOPE_BUFFER": "2000", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "600",
    }  # fmt: skip
    give_up_at_s, newest = time.monotonic() + give_up_s, 0
    steps = "40" if fault == "none" else "200"
    processes = start("tools.gpu_job", ["--fault", fault, "--device", device, "--steps", steps],
                      WORLD, env, log)  # fmt: skip
    try:
        while time.monotonic() < give_up_at_s:
            time.sleep(0.2)
            outcome.first = first_verdict(directory)
            if outcome.first or all(p.poll() is not None for p in processes):
                break
            if (moved := newest_ns(directory)) > newest:
                newest, give_up_at_s = moved, time.monotonic() + give_up_s
        if any(p.poll() is None for p in processes):
            time.sleep(AFTER_S)
    finally:
        end(processes)
    time.sleep(2.0)  # the monitor's own last look
    outcome.first = outcome.first or first_verdict(directory)
    if outcome.first:
        at_ns = int(str(outcome.first["at_ns"]))
        outcome.after_s = round((at_ns - newest_ns(directory, at_ns)) / 1e9, 1)
    text = log.read_text("utf-8", "replace")
    outcome.line = next((s for s in text.splitlines() if s.startswith("[hangscope]")), "")
    outcome.devices = len(list(directory.glob("*.device")))
    outcome.final = analyse(directory)
    return outcome


def first_verdict(directory: Path) -> dict[str, object]:
    """The first verdict in a monitor's journal."""
    for path in directory.glob("*.journal"):
        for line in path.read_text("utf-8", "replace").splitlines():
            if '"event":"verdict"' in line:
                said = json.loads(line)
                return {
                    name: said.get(name) for name in ("verdict", "culprits", "summary", "at_ns")
                }
    return {}


def analyse(directory: Path) -> dict[str, object]:
    """What ``hangscope analyze`` says about a run directory."""
    command = [sys.executable, "-m", "hangscope", "analyze", "--json", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        said = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"verdict": "failed", "summary": done.stderr[-400:], "culprits": []}
    return {name: said[name] for name in ("verdict", "culprits", "confidence", "summary")}


def measure(rounds: int, place: Path) -> dict[str, list[dict[str, float]]]:
    """Run the measurement with and without the plugin in turn."""
    found: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
    for number in range(rounds):
        for name, value in (("with", "1"), ("without", "0")):
            log = place / f"cost-{name}-{number}.log"
            env = {
                "HANGSCOPE": "1", "HANGSCOPE_MONITOR": "0", "HANGSCOPE_NCCL_PLUGIN": value,
                "HANGSCOPE_DIR": str(place / f"cost-{name}-{number}"),
            }  # fmt: skip
            processes = start("tools.gpu_cost", [], 2, env, log)
            give_up_s = time.monotonic() + GIVE_UP_S
            while time.monotonic() < give_up_s and any(p.poll() is None for p in processes):
                time.sleep(0.1)
            end(processes)
            lines = [s for s in log.read_text("utf-8", "replace").splitlines() if s[:1] == "{"]
            found[name] += [json.loads(line) for line in lines]
    return found


def main() -> int:
    """Measure, break, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--rounds", type=int, default=1, help="of the measurement")
    parser.add_argument("--jobs", type=int, default=3, help="at a time")
    parser.add_argument(
        "--give-up", type=float, default=GIVE_UP_S, help="seconds without an operation"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    on_gpu = arguments.device == "cuda"
    if on_gpu:
        ensure_plugin()  # the first job would run without it
    faults = [name for name in arguments.faults if on_gpu or not FAULTS[name].only_gpu]
    with tempfile.TemporaryDirectory(prefix="gpu-faults-") as name:
        place = Path(name)
        began_s = time.monotonic()
        cost = measure(arguments.rounds, place) if on_gpu else {}
        print(json.dumps(cost), f"{time.monotonic() - began_s:.0f} s", flush=True)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            outcomes = []
            for one in pool.map(
                lambda f: run_fault(f, arguments.device, place, arguments.give_up), faults
            ):
                outcomes.append(one)
                show(one)
        wrong = [o for o in outcomes if not o.is_right(o.first) or not o.is_right(o.final)]
        late = [o.fault for o in outcomes if o.is_late]
        rest = f"; late: {', '.join(late)}" if late else ""
        took_s = time.monotonic() - began_s
        print(f"{len(faults) - len(wrong)} of {len(faults)} right{rest}; {took_s:.0f} s")
        result = {"cost": cost, "outcomes": [asdict(o) for o in outcomes]}
        (arguments.out / "faults.json").write_text(json.dumps(result, indent=1))
        with tarfile.open(arguments.out / "runs.tar.gz", "w:gz", compresslevel=3) as archive:
            archive.add(place, "runs")
    return bool(wrong or late)


def show(one: Outcome) -> None:
    """Print one outcome."""
    for when, said in (("first", one.first), ("final", one.final)):
        mark = "right" if one.is_right(said) else "WRONG"
        whom = f"{said.get('culprits', [])} {said.get('confidence', '')}"
        what = f"{said.get('verdict', 'silent')} {whom}: {said.get('summary', '')}"
        print(f"{one.fault:14} {when} {mark} {what}")
    late = ", LATE" if one.is_late else ""
    print(f"{'':14} {one.devices} device rings, report after {one.after_s} s{late}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
