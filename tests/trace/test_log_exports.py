"""Logs as collectors export and show them: tables, API responses, host columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace.job_log.lines.host_column import detect_host_column
from hangscope.trace.load import load_trace

from .logs import timeout, trace_of

PODS = ("job-3-master-7", "job-3-worker-12")
ENDED = (
    "E0816 11:20:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:869] failed "
    "(exitcode: 1) local_rank: 0 (pid: 77) of binary: /bin/py"
)
RAISED = [
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 9, in <module>',
    "    main()",
    '    raise ValueError("bad, sample")',
    "ValueError: bad, sample",
]
Line = tuple[int, str]
STEPS: list[Line] = [(pod, f"step {i} loss 2.{i}") for i in range(9) for pod in (0, 1)]
SIGNED = [*STEPS, *((1, f"[rank2]: {line}") for line in RAISED)]
SIGNED += [(0, line) for rank in (0, 1) for line in timeout(rank, 7).splitlines()]
UNSIGNED = [*STEPS, *((1, f"[default0]:{line}") for line in RAISED), (1, ENDED)]


def table(lines: list[Line]) -> str:
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(["Date", "Pod_Name", "Message"])
    rows.writerows((f"{i:04d}", PODS[pod], text) for i, (pod, text) in enumerate(lines))
    return out.getvalue()


def newest_first(lines: list[Line]) -> str:
    head, *rows = table(lines).splitlines()
    return "\n".join([head, *reversed(rows)])


def of_streams(lines: list[Line]) -> str:
    streams = [
        {
            "stream": {"pod": PODS[pod]},
            "values": [[f"{i:04d}", t] for i, (p, t) in enumerate(lines) if p == pod],
        }
        for pod in (0, 1)
    ]
    return json.dumps({"status": "success", "data": {"resultType": "streams", "result": streams}})


def list_of_objects(lines: list[Line]) -> str:
    found = [
        {"textPayload": t, "timestamp": f"{i:04d}", "resource": {"labels": {"pod_name": PODS[p]}}}
        for i, (p, t) in enumerate(lines)
    ]
    return json.dumps(found[::-1])


def objects(lines: list[Line]) -> str:
    return "\n".join(json.dumps({"log": t, "kubernetes": {"pod_name": PODS[p]}}) for p, t in lines)


def in_front(form: str) -> Callable[[list[Line]], str]:
    return lambda lines: "\n".join(form.format(PODS[pod]) + text for pod, text in lines)


SHOWN = [
    table,
    newest_first,
    of_streams,
    list_of_objects,
    objects,
    in_front("[pod/{}/main] "),
    in_front("{} main "),
    in_front("\x1b[36m{}\x1b[0m \x1b[36mmain\x1b[0m "),
    in_front("{} main 2025-08-16T11:00:00.123456789Z "),
    in_front("Aug 16 11:00:00 {} train.sh[912]: "),
    in_front("2025-08-16 11:00:00.123 {} "),
    in_front("{}: "),
    in_front("[{}] "),
    in_front("logs/{}.log:12:"),
    in_front("training {} main "),
    in_front("ml-team {} main "),
    in_front("INFO {} "),
    in_front("[{} main] "),
    in_front("ml/{}[main]: "),
    in_front("train_w.1.x7a9@{}    | "),
    in_front("11:00:01 {} | "),
    in_front("[11:00:01] {} | "),
    in_front("{}\t"),
    in_front("{} > "),
    in_front("{}/out: "),
    in_front("host={} "),
    in_front("1723806000.123 {} "),
    in_front("Aug 16 11:00:00.123456 {} train[77]: "),
    in_front("2025-08-16T11:00:00+0000 {} train[77]: "),
]
UNKNOWN = [in_front("<<{}>> "), in_front("ts=1 pod={} msg="), in_front("{} ~~ 17 ~~ ")]
"""Wrappers that nobody knows: what they put in front of torch's lines tells the machines apart."""


@pytest.mark.parametrize("shown", SHOWN)
def test_crashed_rank_is_named_in_every_export_format(
    shown: Callable[[list[Line]], str], tmp_path: Path
) -> None:
    path = tmp_path / "job.log"
    path.write_text(shown(SIGNED))
    found = diagnose(load_trace([path]))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))


@pytest.mark.parametrize("shown", [*SHOWN, *UNKNOWN])
def test_local_rank_of_the_second_pod_is_not_rank_0(
    shown: Callable[[list[Line]], str], tmp_path: Path
) -> None:
    path = tmp_path / "job.log"
    path.write_text(shown([(0, timeout(0, 7).splitlines()[1]), *UNSIGNED]))
    assert 0 not in diagnose(load_trace([path])).culprits


@pytest.mark.parametrize("shown", [*SHOWN, *UNKNOWN])
def test_local_rank_of_a_single_pod_is_the_rank(
    shown: Callable[[list[Line]], str], tmp_path: Path
) -> None:
    path = tmp_path / "job.log"
    lines = [(0, timeout(0, 7).splitlines()[1]), *((0, text) for _, text in UNSIGNED)]
    path.write_text(shown(lines))
    assert 0 in diagnose(load_trace([path])).culprits


def test_traceback_in_one_cell() -> None:
    rows = [("1", "step 1"), ("2", "\n".join(f"[rank2]: {line}" for line in RAISED))]
    out = io.StringIO()
    csv.writer(out).writerows([("timestamp", "message"), *rows])
    found = diagnose(trace_of(out.getvalue()))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ([f"node{i % 2}: step {i}" for i in range(20)], {"node0", "node1"}),
        ([f"step-{i} done" for i in range(20)], set()),
        ([f"INFO step {i}" for i in range(20)], set()),
        ([f"rank{i % 2}: step {i}" for i in range(20)], set()),
        ([f"loss 2.{i}" if i % 2 else "node-1 x" for i in range(20)], set()),
    ],
)
def test_names_in_front_of_nearly_all_lines(lines: list[str], names: set[str]) -> None:
    assert detect_host_column(lines).names == names


@pytest.mark.parametrize(
    "line",
    [
        "rtDeviceSynchronize execute failed, reason=[stream sync timeout]",
        "EI0002: The Notify register has not received the Notify record from remote rank [24].",
        "2023:11:28-16:35:45:(3) |CCL_ERROR| exec.cpp:134 start_workers: failed to start worker",
        "NVRM: The GPU 0000:b3:00.0 has fallen off the bus and is not responding to commands.",
        "4m   Warning   Evicted   pod/job-worker-1   The node was low on resource: memory.",
    ],
)
def test_unattributed_message_is_a_sign(line: str) -> None:
    found = diagnose(trace_of(f"starting\n{line}\n"))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())


@pytest.mark.parametrize("end", ["To avoi", "Some NCCL operations have fai", "[rank3]:[E816 12"])
def test_rank_silent_in_a_truncated_paste_may_have_spoken(end: str) -> None:
    work = "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000)"
    said = [
        f"[E ProcessGroupNCCL.cpp:457] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"{work} ran for 600012 milliseconds before timing out."
        for rank in (1, 2, 3)
    ]
    c10 = "" if end.startswith("[") else "[E ProcessGroupNCCL.cpp:477] "
    assert diagnose(trace_of("\n".join([*said, c10 + end]))).culprits == ()
    assert diagnose(trace_of("\n".join([*said, "step"]) + "\n")).culprits == (0,)


@pytest.mark.parametrize(
    "record",
    [
        {"rank": "3", "msg": "\n".join(RAISED)},
        {"message": "failed", "extra": {"rank": 3}, "exc_info": "\n".join(RAISED)},
        {"text": "\n".join(RAISED), "record": {"extra": {"rank": 3}, "message": "failed"}},
    ],
)
def test_rank_added_by_a_logger(record: dict[str, Any]) -> None:
    waits = "".join(timeout(rank, 7) for rank in (0, 1, 2))
    found = diagnose(trace_of(json.dumps(record) + "\n" + waits))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (3,))


@pytest.mark.parametrize("rank", ["", "all", "-1", "3 of 4", True, 3.5, "12345678", None])
def test_record_fields_that_are_no_rank(rank: object) -> None:
    assert not trace_of(json.dumps({"rank": rank, "msg": "\n".join(RAISED)}) + "\n").ranks


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_log_in_utf16_needs_no_mark(tmp_path: Path, encoding: str) -> None:
    filler = "epoch 1 \N{CHECK MARK} done\n" * 40_000
    text = filler + "".join(timeout(rank, 12) for rank in range(3))
    (tmp_path / "job.log").write_bytes(text.encode(encoding))
    trace = load_trace([tmp_path])
    assert sorted(trace.ranks) == [0, 1, 2]
    assert not trace.warnings


def test_journald_writes_messages_with_colours_as_bytes(tmp_path: Path) -> None:
    lines = []
    for rank in range(3):
        for text in timeout(rank, 12).splitlines():
            coloured = list(f"\x1b[31m{text}\x1b[0m".encode())
            lines.append(json.dumps({"_PID": "7", "MESSAGE": coloured}, separators=(",", ":")))
    (tmp_path / "journal.json").write_text("\n".join(lines) + "\n")
    assert sorted(load_trace([tmp_path]).ranks) == [0, 1, 2]
