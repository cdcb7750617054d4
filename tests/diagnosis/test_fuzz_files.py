"""Damaged dumps and logs of a whole job, through readers and diagnosis: an answer, soon."""

from __future__ import annotations

import io
import random
import re
import time
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hangscope.diagnosis import diagnose
from hangscope.trace.files.sniff import Unreadable
from hangscope.trace.flight_recorder.read import Origin, read_document
from hangscope.trace.job_log.read import read_job_log
from hangscope.trace.merging.merge import merge
from hangscope.trace.model import Fragment
from tests.depth import examples
from tests.trace.dumps import dump, entry, pending
from tests.trace.logs import timeout
from tests.trace.test_fuzz import check, paths, replaced, values
from tests.trace.test_job_log_desync import DESYNC
from tests.trace.test_job_log_other_launchers import HYDRA, OPEN_MPI, RICH, SPAWN_ERROR
from tests.trace.torchrun_table import table

SOME = settings(
    max_examples=examples(80), suppress_health_check=list(HealthCheck), derandomize=True
)
MOST_S = 10.0


def whole(rank: int) -> dict[str, Any]:
    right, left = (rank + 1) % 3, (rank - 1) % 3
    rows = [
        entry(1),
        pending(1, f"nccl:send {rank}->{right}", is_p2p=True, p2p_seq_id=1),
        pending(1, f"nccl:recv {rank}<-{left}", is_p2p=True, p2p_seq_id=1),
        pending(1, "nccl:coalesced", p2p_seq_id=1),
        pending(2, "nccl:all_to_all", output_sizes=[[4096 + rank]], p2p_seq_id=1),
    ]
    if rank == 0:
        rows.append(pending(2, "nccl:recv 0<-?", is_p2p=True, p2p_seq_id=2))
    return dump(rows, world=3)


JOB = {rank: whole(rank) for rank in range(3)}
PLACES = {rank: paths(document) for rank, document in JOB.items()}


@st.composite
def damaged_jobs(draw: st.DrawFn) -> dict[int, Any]:
    job: dict[int, Any] = dict(JOB)
    for _ in range(draw(st.integers(1, 6))):
        rank = draw(st.integers(0, 2))
        job[rank] = replaced(job[rank], draw(st.sampled_from(PLACES[rank])), draw(values))
    if draw(st.booleans()):
        job = {rank: {"rank": rank, "inner": [document]} for rank, document in job.items()}
    return job


@SOME
@given(damaged_jobs())
def test_damaged_dumps_of_one_job_get_an_answer(job: dict[int, Any]) -> None:
    fragments: list[Fragment] = []
    for rank, document in job.items():
        try:
            fragments += read_document(document, Origin(f"r{rank}", "flight-recorder-pickle", rank))
        except Unreadable:
            continue
    if fragments:
        trace = merge(fragments)
        check(trace)
        started = time.process_time()
        assert diagnose(trace).summary
        assert time.process_time() - started < MOST_S


LINES = "".join(
    [*(timeout(r, 78) for r in range(4)), DESYNC, table(-9, "x"),
     SPAWN_ERROR, OPEN_MPI, HYDRA, RICH]
).splitlines(keepends=True)  # fmt: skip
DAMAGE = (
    "\n",
    "\r",
    "\x1b[31m",
    "[rank",
    "9" * 20,
    "-1",
    "\x00",
    "│ ",
    "[1,2]<stderr>:",
    '{"log":"',
)


@SOME
@given(st.integers(0, 2**32))
def test_damaged_logs_get_an_answer(seed: int) -> None:
    rng = random.Random(seed)
    lines = [line for line in LINES if rng.random() < 0.8]
    if rng.random() < 0.5:
        rng.shuffle(lines)
    text = "".join(lines)
    for _ in range(rng.randrange(8)):
        at = rng.randrange(len(text) + 1)
        numbers = list(re.finditer(r"\d+", text))
        if numbers and rng.random() < 0.5:
            hit = rng.choice(numbers)
            number = rng.choice(["0", "7", "4096", str(2**64 - 1), "999999", "00"])
            text = text[: hit.start()] + number + text[hit.end() :]
        else:
            text = text[:at] + rng.choice(DAMAGE) + text[at + rng.randrange(20) :]
    started = time.process_time()
    trace = merge(read_job_log(io.BytesIO(text.encode()), path="job.log", year=2025))
    check(trace)
    assert diagnose(trace).summary
    assert time.process_time() - started < MOST_S
