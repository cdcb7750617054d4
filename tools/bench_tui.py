"""Measures what people wait for when they look: the terminal's refresh, the page, the trace file.

Run ``python -m tools.bench_tui``; the table it prints stands in docs/tui.md.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import view_samples as samples  # noqa: E402

from hangscope.tui.app import HangScopeApp  # noqa: E402
from hangscope.tui.snapshot import take  # noqa: E402
from hangscope.tui.source import Still  # noqa: E402

RANKS = 1024


def median_ms(work: Callable[[], Any], repeats: int) -> float:
    """Median duration of `work` in milliseconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


async def drawing(job: samples.Job, size: tuple[int, int], repeats: int) -> dict[str, float]:
    """Milliseconds from a new snapshot to a painted screen, for each pane."""
    app = HangScopeApp(Still(job.trace, job.diagnosis, "bench"))
    out = {}
    async with app.run_test(size=size) as pilot:
        while app.snapshot is None:
            await pilot.pause(0.02)
        for key, pane in enumerate(("timeline", "ranks", "sequence", "details", "waits", "stacks")):
            await pilot.press(str(key + 1))
            await pilot.pause(0.2)
            snapshot = app.snapshot

            def refresh(snapshot: Any = snapshot) -> None:
                app.show(snapshot)
                app.screen._compositor.render_strips()

            out[pane] = median_ms(refresh, repeats)
    return out


def live(repeats: int, records: int) -> dict[str, float]:
    """Milliseconds of each part of a look at 1,024 real rings of which one has changed."""
    from hangscope.diagnosis.engine import diagnose
    from hangscope.trace.live import LiveRun
    from tools.bench_analyze import write_rings

    with tempfile.TemporaryDirectory(prefix="hangscope-bench-") as folder:
        directory = Path(folder) / "run"
        write_rings(directory, RANKS, records)
        run = LiveRun(directory)
        trace = run.look()
        out = {"look": median_ms(run.look, repeats)}
        out["judge"] = median_ms(lambda: diagnose(trace), repeats)
        diagnosis = diagnose(trace)
        out["index"] = median_ms(lambda: take(trace, diagnosis), repeats)
        job = samples.Job(trace, diagnosis)
        out |= {f"draw {k}": v for k, v in asyncio.run(drawing(job, (160, 50), repeats)).items()}
        run.close()
    return out


def page() -> tuple[float, int]:
    """(seconds, bytes) of the page for 1,024 ranks."""
    from hangscope.report.html import to_html

    job = samples.hang(RANKS, culprit=77, steps=30)
    to_html(job.diagnosis, job.trace)
    began = time.perf_counter()
    html = to_html(job.diagnosis, job.trace)
    return time.perf_counter() - began, len(html.encode())


_PERFETTO = r"""
import ctypes, gc, re, sys, time
sys.path.insert(0, "tests")

def memory(field):
    return int(re.search(field + r":\s+(\d+)", open("/proc/self/status").read())[1]) / 1024

import view_samples as samples
from hangscope.report import perfetto
job = samples.hang(256, culprit=77, steps={steps}, per_step=6)
gc.collect()
ctypes.CDLL(None).malloc_trim(0)  # what building the records took does not count
open("/proc/self/clear_refs", "w").write("5")
before = memory("VmRSS")
began = time.perf_counter()
with open({out!r}, "wb") as file:
    perfetto.write(job.trace, job.diagnosis, file)
took = time.perf_counter() - began
print(len(job.trace.records), took, memory("VmHWM") - before, job.trace.records.nbytes / 2**20)
"""


def perfetto(steps: int) -> tuple[int, float, float, float, float]:
    """(records, seconds, MiB beyond the trace, MiB of the trace, MiB of the file)."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        code = _PERFETTO.format(steps=steps, out=file.name)
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
        )
        records, took, extra, own = run.stdout.split()
        size = Path(file.name).stat().st_size / 2**20
    return int(records), float(took), float(extra), float(own), size


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--records", type=int, default=200, help="records a ring")
    parser.add_argument("--steps", type=int, default=490, help="490 make a million records")
    args = parser.parse_args()
    print(f"live run, {RANKS} rings of {args.records} records, one look a second")
    for name, ms in live(args.repeats, args.records).items():
        print(f"  {name:<16} {ms:8.1f} ms")
    seconds, size = page()
    print(f"page, {RANKS} ranks: {seconds * 1e3:.0f} ms, {size / 1e6:.2f} MB")
    records, took, extra, own, file = perfetto(args.steps)
    print(
        f"trace file, {records} records: {took:.1f} s, {extra:.0f} MiB beyond the trace's"
        f" {own:.0f} MiB, file {file:.0f} MiB"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak of this process {peak:.0f} MiB")


if __name__ == "__main__":
    main()
