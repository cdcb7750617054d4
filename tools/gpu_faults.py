"""Faults on a real GPU: what the monitor says first, and what the analysis says in the end.

    python -m tools.gpu_faults --out FOLDER

Four ranks share the GPU (`tools.gpus`). Each fault is a job of its own (`tools.gpu_job`), three at
a time; before them, `tools.gpu_cost` runs with and without NCCL's plugin in turn. All of it takes
about four minutes. ``--device cpu`` runs on Gloo what needs no GPU. FOLDER gets ``faults.json`` and
``runs.tar.gz``: logs, journals and rings of each job.
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

from tools.ports import free_port

ROOT = Path(__file__).parent.parent
WORLD = 4
TIMEOUT_S = 4.0
GIVE_UP_S = 45.0
AFTER_S = 4.0
"""How long a job is left alone after the first report."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is right for a fault."""

    verdicts: tuple[str, ...]
    culprits: tuple[int, ...]
    only_gpu: bool = False


MISMATCH = ("shape_mismatch", "argument_mismatch", "collective_mismatch")
FAULTS = {
    "none": Expected(("healthy",), ()),
    "kernel": Expected(("missing_rank", "stuck_collective"), (1,), only_gpu=True),
    "graph": Expected(("missing_rank",), (1,), only_gpu=True),
    "graph-kernel": Expected(("missing_rank", "stuck_collective"), (1,), only_gpu=True),
    "foreign": Expected(("missing_rank",), (2,), only_gpu=True),
    "foreign-kernel": Expected(("missing_rank", "stuck_collective"), (2,), only_gpu=True),
    "sigstop": Expected(("missing_rank", "stuck_collective"), (2,)),
    "exit0": Expected(("rank_exited", "rank_crashed"), (2,)),
    "sigkill": Expected(("rank_crashed",), (2,)),
    "assert": Expected(("rank_crashed",), (1,), only_gpu=True),
    "oom": Expected(("rank_crashed",), (3,)),
    "splits": Expected(MISMATCH, (1,)),
    "shape": Expected(MISMATCH, (3,)),  # the pair beside it shows who of the two is right
    "p2p": Expected(("p2p_unmatched", "missing_rank"), (1,)),
    "sleep": Expected(("missing_rank",), (1,)),
    "raise": Expected(("rank_crashed",), (0,)),
    "kernel-plain": Expected(("missing_rank", "stuck_collective"), (1,), only_gpu=True),
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
    """From the start of the job to that report."""
    final: dict[str, object] = field(default_factory=dict)
    """The analysis of what is left."""
    devices: int = 0
    """Ranks with a device ring."""

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
    began_s = time.monotonic()
    steps = "40" if fault == "none" else "200"
    processes = start("tools.gpu_job", ["--fault", fault, "--device", device, "--steps", steps],
                      WORLD, env, log)  # fmt: skip
    try:
        while time.monotonic() - began_s < give_up_s:
            time.sleep(0.1)
            outcome.first = first_verdict(directory)
            if outcome.first or all(p.poll() is not None for p in processes):
                break
        if outcome.first:
            outcome.after_s = round(time.monotonic() - began_s, 1)
        if any(p.poll() is None for p in processes):
            time.sleep(AFTER_S)
    finally:
        end(processes)
    time.sleep(2.0)  # the monitor's own last look
    outcome.first = outcome.first or first_verdict(directory)
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
                return {name: said.get(name) for name in ("verdict", "culprits", "summary")}
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
    parser.add_argument("--give-up", type=float, default=GIVE_UP_S, help="seconds for one job")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    on_gpu = arguments.device == "cuda"
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
        wrong = [o.fault for o in outcomes if not o.is_right(o.first) or not o.is_right(o.final)]
        print(
            f"{len(faults) - len(wrong)} of {len(faults)} right; {time.monotonic() - began_s:.0f} s"
        )
        result = {"cost": cost, "outcomes": [asdict(o) for o in outcomes]}
        (arguments.out / "faults.json").write_text(json.dumps(result, indent=1))
        with tarfile.open(arguments.out / "runs.tar.gz", "w:gz", compresslevel=3) as archive:
            archive.add(place, "runs")
    return bool(wrong)


def show(one: Outcome) -> None:
    """Print one outcome."""
    for when, said in (("first", one.first), ("final", one.final)):
        mark = "right" if one.is_right(said) else "WRONG"
        whom = f"{said.get('culprits', [])} {said.get('confidence', '')}"
        what = f"{said.get('verdict', 'silent')} {whom}: {said.get('summary', '')}"
        print(f"{one.fault:14} {when} {mark} {what}")
    print(f"{'':14} {one.devices} device rings, report after {one.after_s} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
