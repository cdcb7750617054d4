"""Log timestamps are in local time and have no year, unlike recorded times."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace.load import load_trace
from hangscope.trace.model import Trace

from .dumps import BASE_NS, dump, entry, pending, write

WAIT_S = 600
LATE = BASE_NS + (6 + WAIT_S + 4) * 10**9
"""When the watchdogs had dumped; the sixth operation began six seconds after `BASE_NS`."""
LINE = (
    "[rank{rank}]:[E{at:%m%d %H:%M:%S}.123456 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog "
    "caught collective operation timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=4096, "
    "NumelOut=4096, Timeout(ms)=600000) ran for {ran_s}029 milliseconds before timing out.\n"
)
"""As torch writes it."""


def job(folder: Path, zone_h: float, years: int = 0, *, ran_s: int = WAIT_S) -> Trace:
    """Rank 2 of four never comes to #6; the log is written in a zone of its own."""
    for rank in range(4):
        entries = [entry(seq) for seq in range(1, 6)] + ([pending(6)] if rank != 2 else [])
        path = write(folder, f"nccl_trace_rank_{rank}", dump(entries, world=4))
        os.utime(path, ns=(LATE, LATE))
    zone = timezone(timedelta(hours=zone_h))
    at = datetime.fromtimestamp(BASE_NS / 1e9 + 6 + WAIT_S, zone)
    log = folder / "job.log"
    log.write_text("".join(LINE.format(rank=rank, at=at, ran_s=ran_s) for rank in (0, 1, 3)))
    written = datetime(at.year + years, 7, 1, tzinfo=timezone.utc).timestamp()
    os.utime(log, (written, written))
    return load_trace([folder])


def waited_s(trace: Trace) -> float:
    records = trace.records
    waiting = records[(records["collective_seq"] == 6) & (records["created_ns"] > 0)]
    return (trace.observed_ns - int(waiting["created_ns"].min())) / 1e9


@pytest.mark.parametrize(("zone_h", "years"), [(0, 0), (8, 0), (-7, 0), (5.75, 0), (8, 1), (0, -1)])
def test_wait_has_the_same_length_in_every_time_zone(
    tmp_path: Path, zone_h: float, years: int
) -> None:
    trace = job(tmp_path, zone_h, years)
    found = diagnose(trace)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert waited_s(trace) == pytest.approx(WAIT_S, abs=15)
    assert {c.at_ns // 10**9 for c in trace.claims if c.kind == "timeout"} == {
        BASE_NS // 10**9 + 6 + WAIT_S
    }


def test_log_without_common_events_keeps_its_times(tmp_path: Path) -> None:
    """It began seven minutes before: no time zone differs by that, and it may be another
    attempt's."""
    trace = job(tmp_path, 8, ran_s=WAIT_S + 420)
    times = {c.at_ns // 10**9 for c in trace.claims if c.kind == "timeout"}
    assert times == {BASE_NS // 10**9 + 6 + WAIT_S + 8 * 3600}


def test_logs_of_one_job_are_shifted_together(tmp_path: Path) -> None:
    job(tmp_path, 8)
    at = datetime.fromtimestamp(BASE_NS / 1e9 + 700, timezone(timedelta(hours=8)))
    other = tmp_path / "rank_2.log"
    other.write_text(
        f"[rank2]:[E{at:%m%d %H:%M:%S}.100000 ProcessGroupNCCL.cpp:1515] [PG 0 Rank 2] Process "
        "group watchdog thread terminated with exception: CUDA error: an illegal memory access was "
        "encountered\n"
    )
    os.utime(other, ns=(LATE, LATE))
    trace = load_trace([tmp_path])
    (told,) = [claim for claim in trace.claims if claim.kind == "device_error"]
    assert told.at_ns // 10**9 == BASE_NS // 10**9 + 700
