"""The monitor's output in a log that other processes write to as well."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.monitor.log_output import print_line, print_report
from hangscope.monitor.watch import Monitor, MonitorConfig
from hangscope.ring.run_secret import RunSecret
from hangscope.trace.live.open_ring import RunKey
from hangscope.trace.live.own_run import OwnRun
from tests.commands.test_printed_text import CONTROLS, HOSTILE
from tests.diagnosis.builder import Job
from tests.ring_processes import ring_process


def test_report_begins_on_a_new_line() -> None:
    job = Job(3, live=True)
    job.steps(3)
    for rank in (0, 2):
        job.op(rank, done=False)
    log = io.StringIO()
    log.write("\r 37%|###       | 37/100")
    print_report(diagnose(job.trace()), where="more: hangscope analyze run", out=log)
    lines = log.getvalue().splitlines()
    assert any(line.startswith("[hangscope] Rank 1 never joined") for line in lines)
    assert lines[-1] == "[hangscope] more: hangscope analyze run"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("log", "no_color", "coloured"),
    [(io.StringIO(), "", False), (Terminal(), "", True), (Terminal(), "1", False)],
)
def test_only_a_terminal_gets_colours(
    monkeypatch: pytest.MonkeyPatch, log: io.StringIO, no_color: str, coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    job = Job(2, live=True)
    job.steps(3)
    job.op(0, done=False)
    print_report(diagnose(job.trace()), where="more", out=log)
    assert "Rank 1 never joined" in log.getvalue()
    assert ("\x1b[" in log.getvalue()) is coloured


def test_a_living_monitor_prints_no_control_characters(tmp_path: Path) -> None:
    """Of what ranks record, of what else lies in the directory, and of the directory's name."""
    run = tmp_path / f"run{HOSTILE}"
    run.mkdir()
    (run / f"x{HOSTILE}.ring").write_bytes(b"HSRING\0\1")
    (run / "reduction_rank0.jsonl").write_text(
        json.dumps({"hangscope": "reduction/1"}) + "\n" + json.dumps({"text": HOSTILE}) + "\n"
    )
    log = Terminal()
    config = MonitorConfig(run, RunKey("live", 0), 2, timeout_s=2.0, own=OwnRun(RunSecret()))
    until_s = time.monotonic() + 60
    with ring_process(run, 0), ring_process(run, 1, f"broadcast{HOSTILE.replace(chr(0), '')}"):
        Monitor(
            config,
            out=log,
            keep_going=lambda: "more:" not in log.getvalue() and time.monotonic() < until_s,
        ).follow()
    print_line(HOSTILE, log)
    said = re.sub(r"\x1b\[[\d;]*m", "", log.getvalue())
    assert all(word in said for word in ("silent corruption", "broadcast", "owned\\x07"))
    assert "more: hangscope analyze" in said
    assert not re.search(CONTROLS, said), ascii(said)
