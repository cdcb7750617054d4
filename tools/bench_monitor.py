"""What the monitor costs while a job is healthy, in CPU seconds a minute.

``python -m tools.bench_monitor --ranks 64 [--beside TREE]`` lets processes without torch write the
rings of a job that issues two operations a second, and measures the monitor's processor time once
it has started. ``--beside`` measures the monitor of another working tree at the same time, so that
both see the same machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hangscope.ring.process_identity import boot_id, pid_namespace, start_ticks

ROOT = Path(__file__).resolve().parent.parent
STARTED_S = 25.0
"""By then the monitor has imported everything and found all ranks."""
PERIOD_S = 0.5


def write_rings(directory: Path, ranks: int, seconds: float) -> None:
    """Fork the ranks, and wait until they have ended."""
    from tests.live_rings import RingRank

    began_s = time.time() + 6
    for rank in range(ranks):
        if os.fork():
            continue
        pid = os.getpid()
        ring = RingRank(
            directory,
            rank,
            ranks,
            slots=2000,
            pid=pid,
            start_ticks=start_ticks(pid),
            boot_id=boot_id(),
            pid_namespace=pid_namespace(),
        )
        group = ring.join("0", "default_pg", range(ranks))
        for step in range(int(seconds / PERIOD_S)):
            time.sleep(max(0.0, began_s + step * PERIOD_S - time.time()))
            record = ring.issue(group)
            time.sleep(0.005)
            ring.finish(record)
            ring.ring.beat()
        os._exit(0)
    for _ in range(ranks):
        os.wait()


def cpu_s(pid: int) -> float:
    """Processor time that a process and its ended children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measured(trees: list[Path], ranks: int, seconds: float) -> list[float]:
    """CPU seconds a minute of the monitor of each tree, all at the same time."""
    writers, monitors = [], []
    with tempfile.TemporaryDirectory(prefix="bench-monitor-") as name:
        try:
            for number, tree in enumerate(trees):
                folder = Path(name) / str(number)
                folder.mkdir()
                python = tree / ".venv" / "bin" / "python"
                what = [str(__file__), "--write", str(folder), "--ranks", str(ranks)]
                length_s = str(seconds + STARTED_S + 20)
                environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
                writers.append(
                    subprocess.Popen([str(python), *what, "--seconds", length_s], env=environment)
                )
                monitor = [str(python), "-m", "hangscope.monitor", "--directory", str(folder)]
                monitor += ["--run-id", "live", "--local-world-size", str(ranks)]
                monitors.append(subprocess.Popen(monitor, env=environment, cwd="/"))
            time.sleep(STARTED_S)
            before = [cpu_s(monitor.pid) for monitor in monitors]
            time.sleep(seconds)
            after = [cpu_s(monitor.pid) for monitor in monitors]
        finally:
            for process in monitors:
                process.kill()
                process.wait()
            for process in writers:
                process.wait()
    return [(end - begin) * 60 / seconds for begin, end in zip(before, after, strict=True)]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--beside", type=Path, help="another working tree with its own .venv")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write is not None:
        write_rings(options.write, options.ranks, options.seconds)
        return 0
    trees = [ROOT, *([options.beside] if options.beside else [])]
    for tree, cost_s in zip(trees, measured(trees, options.ranks, options.seconds), strict=True):
        each_ms = cost_s * 1e3 / options.ranks
        print(f"{tree}: {cost_s:.2f} CPU s a minute, {each_ms:.1f} ms for each of {options.ranks}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
