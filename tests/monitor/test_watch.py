"""The monitor's loop over real processes, whose rings the tests write."""

from __future__ import annotations

import sys
import time

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.monitor import doubled_ranks, watch
from hangscope.monitor.hardware import evidence
from hangscope.monitor.hardware.signs import Sign, to_json
from hangscope.trace.load import load_trace
from tests.monitor.conftest import Followed


def test_monitor_gives_up_if_no_rank_shows_up(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "NO_RANKS_S", 0.2)
    monitor = followed.follow()
    followed.end(ask=False)
    assert monitor.last is None
    assert followed.out.getvalue() == ""


def test_two_processes_of_one_rank_are_reported_once_after_a_moment(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubled_ranks, "DOUBLED_S", 0.5)
    followed.ring(0, process=0)
    (followed.folder / "rank_0.ring").rename(followed.folder / "rank_0.live.0.ring")
    first = time.monotonic()
    followed.ring(0, process=1)
    followed.follow()
    followed.until(lambda: "two processes are rank 0" in followed.out.getvalue())
    assert time.monotonic() - first >= 0.5
    time.sleep(1.0)
    assert followed.out.getvalue().count("two processes are rank 0") == 1


def test_pause_and_its_end_are_reported_once_each(followed: Followed) -> None:
    ranks = [followed.ring(rank, process=rank) for rank in range(2)]
    groups = [rank.join("0", "default_pg", range(2)) for rank in ranks]
    waiting = ranks[0].issue(groups[0])
    followed.follow()
    followed.until(lambda: "Rank 1 never joined all_reduce #1" in followed.out.getvalue())
    assert "moving again" not in followed.out.getvalue()
    late = ranks[1].issue(groups[1])
    ranks[0].finish(waiting)
    ranks[1].finish(late)
    followed.until(lambda: "moving again after" in followed.out.getvalue())
    time.sleep(1.0)
    assert followed.out.getvalue().count("moving again") == 1


def test_nothing_is_printed_about_ranks_that_end_well(followed: Followed) -> None:
    for rank in range(2):
        ring = followed.ring(rank, process=rank)
        group = ring.join("0", "default_pg", range(2))
        ring.finish(ring.issue(group))
        ring.ring.put_u4("initialized", 0)
        ring.ring.put_u4("finalized", 1)
    monitor = followed.follow()
    followed.until(lambda: bool(monitor._ranks.alive))
    for process in followed.processes:
        process.kill()
        process.wait()
    followed.end(ask=False)
    assert monitor.last is not None
    assert monitor.last.verdict is Verdict.HEALTHY
    assert followed.out.getvalue() == ""


def test_device_that_failed_is_named_live_and_afterwards(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = to_json([Sign("the kernel said 3 s ago: Xid 79", "0000:12:00", 3.0)])
    monkeypatch.setattr(evidence, "has_devices", lambda: True)
    ranks = [followed.ring(rank, process=rank) for rank in range(2)]
    groups = [rank.join("0", "default_pg", range(2)) for rank in ranks]
    for number, rank in enumerate(ranks):
        rank.ring.put_u4("device", rank.ring.text(f"0000:{0x11 + number:02x}:00"))
        rank.issue(groups[number])
    monitor = followed.follow()
    monitor._hardware = evidence.Hardware((sys.executable, "-c", f"print({said!r})"), 20.0)
    followed.until(lambda: "has probably failed" in followed.out.getvalue())
    assert "Rank 1's device 0000:12:00" in followed.out.getvalue()
    followed.until(lambda: monitor.last is not None and monitor.last.culprits == (1,))
    found = diagnose(load_trace([followed.folder]))
    assert (found.verdict, found.culprits) == (Verdict.STUCK_COLLECTIVE, (1,))
    time.sleep(1.0)
    assert followed.out.getvalue().count("none finishes") == 0
