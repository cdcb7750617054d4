"""A job that is killed after its verdict: what remains says no less than the live one did."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.load import load_trace
from tests.real_jobs import ROOT, beside, environment, worlds
from tests.waiting import until
from tools.early import words_of

pytestmark = pytest.mark.timeout(300)


def what_is_said(found: Diagnosis) -> tuple[object, ...]:
    """All that must stay; how the processes ended, and how long they waited, is new."""
    first = found.findings[0]
    sides = [(side.ranks, side.op, side.seq, side.stack) for side in first.sides]
    stacks = [(row.rank, row.role, row.stack) for row in found.ranks]
    return first.verdict, first.culprits, first.confidence, first.summary, sides, stacks


@pytest.mark.parametrize("fault", ["feeder", "self-stop"])
def test_lines_of_those_who_wait_and_of_who_is_waited_for_stay(tmp_path: Path, fault: str) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    words = ["--fault", fault, "--rank", "1", "--step", "6", "--point", "1"]
    command = [sys.executable, str(ROOT / "tools" / "chaos_job.py"), *words]
    env = environment(HANGSCOPE="1", HANGSCOPE_DIR=str(directory), HANGSCOPE_TIMEOUT="4")
    log = tmp_path / "job.log"
    with beside(command, [env | place for place in worlds(3)], log) as ranks:
        until(
            lambda: any(word["event"] == "verdict" for word in words_of(directory)),
            120.0,
            seen=log.read_text,
        )
        live = diagnose(load_trace([directory]))
        for rank in ranks:
            os.kill(rank.pid, signal.SIGKILL)
        until(lambda: any('"event":"exit"' in p.read_text() for p in directory.glob("*.journal")))
        time.sleep(1.0)  # the monitor's last look
    assert what_is_said(diagnose(load_trace([directory]))) == what_is_said(live)
