"""The monitor's last observation of a process is still known after the process was killed."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace import formats
from hangscope.trace.load import load_trace
from hangscope.trace.merging.facts import merge_facts
from hangscope.trace.model import ExitFacts, RankFacts
from tests.real_jobs import beside, environment, worlds
from tests.waiting import until

pytestmark = pytest.mark.timed

SECOND = 1_000_000_000

_JOB = """
import ctypes, os, queue, signal, sys, threading, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
(open(f"{sys.argv[1]}/pid{rank}", "w")).write(str(os.getpid()))
for _ in range(3):
    dist.all_reduce(torch.ones(4))
if rank == 1 and sys.argv[2] == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == 1 and sys.argv[2] == "stopped inside":
    dist.all_reduce(torch.ones(4), async_op=True)
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == 0 and sys.argv[2] == "stopped inside":  # it could end if this rank were there before
    peer = open(f"{sys.argv[1]}/pid1").read()
    while open(f"/proc/{peer}/stat").read().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.05)
if rank == 1 and sys.argv[2] == "is fed by a thread":
    batches = queue.Queue()
    def feed():
        time.sleep(300)
    threading.Thread(target=feed, daemon=True).start()
    batches.get()
if rank == 1 and sys.argv[2] == "holds the GIL":
    ctypes.PyDLL(None).sleep(300)
dist.all_reduce(torch.ones(4))
time.sleep(300)
"""


def _judged(directory: Path) -> Diagnosis:
    return diagnose(load_trace([directory]))


def _what_is_said(found: Diagnosis) -> tuple[object, ...]:
    """All that must stay; how the processes ended, and how long they waited, is new."""
    first = found.findings[0]
    sides = [(side.ranks, side.op, side.seq, side.stack) for side in first.sides]
    stacks = [(row.rank, row.role, row.stack) for row in found.ranks]
    return first.verdict, first.culprits, first.confidence, first.summary, sides, stacks


@pytest.mark.parametrize(
    ("how", "verdict", "states"),
    [
        ("stopped", "missing_rank", ("stopped", "stopped")),
        ("stopped inside", "stuck_collective", ("stopped", "stopped")),
        ("holds the GIL", "missing_rank", ("gil-held", "gil-held")),
        ("is fed by a thread", "missing_rank", ("sleeping", "ended")),
    ],
)
def test_verdict_is_the_same_after_the_job_was_killed(
    tmp_path: Path, how: str, verdict: str, states: tuple[str, str]
) -> None:
    script, rings = tmp_path / "job.py", tmp_path / "rings"
    script.write_text(_JOB)
    env = environment(HANGSCOPE="1", HANGSCOPE_DIR=str(rings), HANGSCOPE_TIMEOUT="4")
    command = [sys.executable, str(script), str(tmp_path), how]
    log = tmp_path / "log"
    with beside(command, [env | place for place in worlds(2)], log) as job:
        until(lambda: "[hangscope] more:" in log.read_text(), 90.0, seen=log.read_text)
        live = _judged(rings)
        for rank in job:
            os.kill(rank.pid, signal.SIGKILL)
        until(lambda: _ends(rings) == 2)
    after = _judged(rings)
    for found, state in zip((live, after), states, strict=True):
        assert (found.verdict.value, found.culprits) == (verdict, (1,))
        assert found.ranks[1].state == state
    assert _what_is_said(after) == _what_is_said(live)
    assert live.summary in log.read_text()


def _ends(rings: Path) -> int:
    return sum(path.read_text().count('"event":"exit"') for path in rings.glob("*.journal"))


_RING = RankFacts(1, alive=False, heartbeat_ns=10 * SECOND, observed_ns=10 * SECOND)
_LOOK = RankFacts(
    1, alive=True, process_state="stopped", gil_blocked=True, observed_ns=20 * SECOND
)  # fmt: skip
_END = RankFacts(1, alive=False, process_state="gone", exit=ExitFacts("signal", signal=9))


def test_last_observation_is_used_for_an_ended_process() -> None:
    said = [(formats.RING, _RING), (formats.JOURNAL, _END), (formats.JOURNAL, _LOOK)]
    merged = merge_facts(said)
    assert (merged.process_state, merged.gil_blocked, merged.alive) == ("stopped", True, False)


def test_process_that_moved_on_is_not_blocked() -> None:
    ring = replace(_RING, heartbeat_ns=30 * SECOND, observed_ns=30 * SECOND)
    said = [(formats.RING, ring), (formats.JOURNAL, _END), (formats.JOURNAL, _LOOK)]
    merged = merge_facts(said)
    assert (merged.process_state, merged.gil_blocked) == ("gone", None)


def test_live_process_overrides_the_journal() -> None:
    ring = replace(_RING, alive=True, process_state="running", gil_blocked=False)
    merged = merge_facts([(formats.RING, ring), (formats.JOURNAL, _LOOK)])
    assert (merged.process_state, merged.gil_blocked) == ("running", False)


def test_look_at_an_exiting_process_does_not_revive_it() -> None:
    ring = replace(_RING, exit=ExitFacts("exception", code=1, at_ns=15 * SECOND))
    look = replace(_LOOK, process_state="running", gil_blocked=None)
    for said in ([(formats.RING, ring)], [(formats.RING, replace(ring, alive=None))]):
        merged = merge_facts([*said, (formats.JOURNAL, _END), (formats.JOURNAL, look)])
        assert merged.alive is False
