"""Runs many cases and prints each that went wrong; the exit status says whether any did."""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tools.mutations.cases import run_case

APART_EVERY = 100
"""One case in so many runs in a process of its own."""
SAY_EVERY = 250
_IMPORTED = (
    "hangscope.cli.analyze", "hangscope.cli.replay", "hangscope.cli.export", "hangscope.cli.doctor",
    "hangscope.cli.console", "hangscope.diagnosis.engine", "hangscope.report.text",
    "hangscope.report.json", "hangscope.report.html", "hangscope.report.perfetto",
    "hangscope.report.flight_recorder", "hangscope.replay.write", "hangscope.trace.load",
    "hangscope.trace.job_log.read", "hangscope.trace.external_reports.journal",
    "hangscope.trace.live.follow", "hangscope.monitor.main_threads", "hangscope.lateness.lateness",
    "hangscope.toolkit.doctor.traffic", "hangscope.trace.loading.archives", "numpy.ma.extras",
    "rich.bar", "psutil", "email.parser",
)  # fmt: skip


def main() -> None:
    """Run the cases named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutations", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after so long")
    parser.add_argument("--only", type=int, help="run this case only")
    parser.add_argument("--keep", type=Path, help="where to keep the files of --only")
    given = parser.parse_args()
    _warm_up()
    if given.only is not None:
        folder = given.keep or Path(tempfile.mkdtemp(prefix="mutations-"))
        found = run_case(given.seed, given.only, folder)
        print("\n".join(found) or "nothing wrong", f"\nfiles in {folder}")
        sys.exit(bool(found))
    began, wrong, done = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as place:
        for number in range(given.first, given.first + given.count):
            if time.monotonic() - began > given.seconds:
                break
            done += 1
            if done % SAY_EVERY == 0:
                print(f"{done} cases so far", file=sys.stderr, flush=True)
            apart = number % APART_EVERY == 0
            for fault in run_case(given.seed, number, Path(place) / "case", apart=apart):
                wrong[fault.split("  [")[0]] += 1
                print(f"case {number}: {fault}", flush=True)
    took_s = time.monotonic() - began
    print(f"{done} cases from {given.first} on, {sum(wrong.values())} faults, {took_s:.0f} s")
    for fault, count in wrong.most_common(20):
        print(f"{count:6} {fault}")
    sys.exit(bool(wrong))


def _warm_up() -> None:
    """Import and make what every command needs, so that the forks need not."""
    for module in _IMPORTED:
        importlib.import_module(module)
    from hangscope.replay.vocabulary import public_words
    from hangscope.report.html import _template

    public_words()
    _template()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page


if __name__ == "__main__":
    main()
