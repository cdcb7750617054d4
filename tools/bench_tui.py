"""Measures what people wait for when they look: the terminal's refresh, the page, the trace file.

Run ``python -m tools.bench_tui``. The table that it prints is in docs/tui.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.bench_data import write_rings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import view_samples as samples  # noqa: E402
from live_rings import RingRank  # noqa: E402

from hangscope.ring import layout  # noqa: E402
from hangscope.trace.live.follow import LiveRun  # noqa: E402
from hangscope.tui.app import HangScopeApp  # noqa: E402
from hangscope.tui.commands import PANES  # noqa: E402
from hangscope.tui.snapshot import take  # noqa: E402
from hangscope.tui.source import LIVE_ROWS, LiveSource, StaticSource  # noqa: E402

RANKS = 1024


def sleepers(count: int) -> list[subprocess.Popen[bytes]]:
    """Idle processes that stand for the ranks."""
    return [subprocess.Popen(["sleep", "3600"], close_fds=False) for _ in range(count)]


def start_job(directory: Path, ranks: int, records: int) -> tuple[list[RingRank], list[Any]]:
    """Rings of a job with tensor- and data-parallel groups that has issued ``records`` operations
    per rank, and the processes that the rings name."""
    directory.mkdir()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    processes = sleepers(ranks)
    job = []
    for rank, process in enumerate(processes):
        start = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        own = RingRank(
            directory,
            rank,
            ranks,
            slots=10_000 if ranks <= 64 else 2048,
            pid=process.pid,
            start_ticks=int(start),
            boot_id=boot_id,
            pid_namespace=namespace,
        )
        block = rank // 8 * 8
        own.join("0", "default_pg", range(ranks))
        own.join(str(1 + rank // 8), "tp", range(block, min(block + 8, ranks)))
        own.join(str(1000 + rank % 8), "dp", range(rank % 8, ranks, 8))
        job.append(own)
    step(job, records)
    return job, processes


def step(job: Sequence[RingRank], records: int) -> None:
    """Let every rank finish its pending operation and issue ``records`` more."""
    for own in job:
        for _ in range(records):
            for record in list(own.open):
                own.finish(record)
            number = own.last + 1
            group = 1 if number % 40 == 0 else 2 + number % 2
            op = ("all_reduce", "_all_gather_base", "_reduce_scatter_base")[number % 3]
            own.issue(group, op, line=number % 24, sizes=[[1024, 128 << number % 4]])
        own.sample(own.last % 24)


def live(repeats: int, records: int, moving: int) -> dict[str, dict[str, float]]:
    """CPU milliseconds of each part of a refresh for a job of 1,024 ranks: for a hung job, and for
    one in which every rank has progressed since the last look."""
    from hangscope.diagnosis.engine import diagnose

    out: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="hangscope-bench-") as folder:
        directory = Path(folder) / "run"
        job, processes = start_job(directory, RANKS, records)
        run = LiveRun(directory, rows=LIVE_ROWS)
        try:
            began = time.process_time()
            run.look()
            out["first"] = {"look": (time.process_time() - began) * 1e3}
            out["moving"] = asyncio.run(refreshing(run, lambda: step(job, moving), repeats))
            hang(job)
            out["hung"] = asyncio.run(refreshing(run, lambda: beat(job), repeats))
            trace = run.look()
            out["hung"]["judge, when anything has changed"] = cpu_ms(
                lambda: diagnose(trace), repeats, lambda: None
            )
        finally:
            run.close()
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
    return out


def hang(job: Sequence[RingRank]) -> None:
    """One rank issues nothing any more: its data-parallel group waits for it, and every
    tensor-parallel group waits for its member that waits there."""
    culprit, rest = job[77], [own for own in job if own.rank != 77]
    step(rest, 1)
    free = [culprit, *(own for own in rest if own.rank % 8 != culprit.rank % 8)]
    for own in free:
        for record in list(own.open):
            own.finish(record)
    for own in free[1:]:
        own.issue(2, "_all_gather_base", line=5)
    for own in job:
        own.sample(1)
    wait_long(job)


def beat(job: Sequence[RingRank]) -> None:
    """Write a heartbeat for every rank."""
    for own in job:
        own.ring.beat()


def wait_long(job: Sequence[RingRank]) -> None:
    """Move all unfinished operations ten minutes into the past."""
    fields = layout.SLOT.fields
    assert fields is not None
    at = int(fields["created_ns"][1])
    for own in job:
        for number in range(max(1, own.last - own.ring.slot_count + 1), own.last + 1):
            cell = (own.ring.slot_at(number) + at) // 8
            own.ring.cells[cell] -= 600 * 10**9


async def refreshing(run: Any, between: Callable[[], None], repeats: int) -> dict[str, float]:
    """CPU milliseconds of look, diagnosis, index and paint, and of all together, per pane."""
    source = LiveSource(run, "bench")
    parts: dict[str, list[float]] = {}
    app = HangScopeApp(StaticSource(source.look(), source.judge, "bench"))
    async with app.run_test(size=(160, 50)) as pilot:
        while app.snapshot is None:
            await pilot.pause(0.02)
        for key, pane in enumerate(PANES):
            await pilot.press(str(key + 1))
            await pilot.pause(0.2)
            for _ in range(repeats):
                between()
                marks = [time.process_time()]
                trace = source.look()
                diagnosis = source.judge(trace)
                marks.append(time.process_time())
                snapshot = take(trace, diagnosis)
                marks.append(time.process_time())
                app.show(snapshot)
                app.screen._compositor.render_strips()
                marks.append(time.process_time())
                names = ("look and judge", "index", f"draw {pane}")
                for name, a, b in zip(names, marks, marks[1:], strict=False):
                    parts.setdefault(name, []).append((b - a) * 1e3)
                parts.setdefault(f"all, {pane}", []).append((marks[-1] - marks[0]) * 1e3)
    return {name: statistics.median(times) for name, times in parts.items()}


_FIRST_PICTURE = """
import time
began = time.perf_counter()
import asyncio, resource, sys
from hangscope.tui.app import HangScopeApp
from hangscope.tui.source import open_source

def tell(app):
    app.screen._compositor.render_strips()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(time.perf_counter() - began, time.process_time(), peak, flush=True)

async def drawn(app):
    async with app.run_test(size=(160, 50)) as pilot:
        while app.snapshot is None or not app.timeline.scale_ns:
            await pilot.pause(0.02)
        tell(app)
        while not app.snapshot.is_judged:
            await pilot.pause(0.02)
        tell(app)

asyncio.run(drawn(HangScopeApp(open_source(sys.argv[1:]))))
"""


def first_picture(ranks: int, records: int) -> list[list[float]]:
    """(seconds, CPU seconds, MiB) until a job that is over is on the screen, without and with its
    verdict, imports included."""
    with tempfile.TemporaryDirectory(prefix="hangscope-bench-") as folder:
        rings = Path(folder) / "rings"
        write_rings(rings, ranks, records)
        run = LiveRun(rings)
        while run.may_live():  # until nobody's last sign of life is young
            time.sleep(1)
        run.close()
        command = [sys.executable, "-c", _FIRST_PICTURE, str(rings)]
        told = subprocess.check_output(command, cwd=ROOT, text=True)
    return [[float(number) for number in line.split()] for line in told.splitlines()]


def cpu_ms(work: Callable[[], Any], repeats: int, between: Callable[[], Any]) -> float:
    """Median CPU time of `work` in milliseconds, with `between` before each."""
    times = []
    for _ in range(repeats):
        between()
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e3


def page() -> tuple[float, int]:
    """(seconds, bytes) of the HTML page for 1,024 ranks."""
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
    parser.add_argument("--records", type=int, default=400, help="records per ring")
    parser.add_argument("--steps", type=int, default=490, help="490 steps make a million records")
    parser.add_argument("--moving", type=int, default=20, help="records per rank between two looks")
    parser.add_argument(
        "--first", type=int, metavar="RANKS", help="only the first picture of a job that is over"
    )
    args = parser.parse_args()
    if args.first:
        measured = first_picture(args.first, args.records)
        for what, row in zip(("picture", "verdict"), measured, strict=True):
            seconds, cpu, peak = row
            print(f"first {what}, {args.first} rings of {args.records} records: {seconds:.1f} s,"
                  f" {cpu:.1f} s of CPU, {peak:.0f} MiB")  # fmt: skip
        return
    print(f"live run, {RANKS} rings of {args.records} records; CPU time, median of {args.repeats}")
    for state, parts in live(args.repeats, args.records, args.moving).items():
        print(f"  {state}")
        for name, ms in parts.items():
            print(f"    {name:<34} {ms:8.1f} ms")
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
