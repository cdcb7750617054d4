# ruff: noqa: E501
"""Stacks from py-spy and faulthandler, error files of torch elastic, NCCL's RAS as JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence
from hangscope.trace.load import NothingReadable, load_trace

from .logs import timeout, trace_of

SPY = """Process {pid}: /usr/bin/python train.py
Python v3.10.12 (/usr/bin/python3.10)

Thread {pid} (idle): "MainThread"
    {where}
    step (train.py:44)
    <module> (train.py:90)
Thread 928 (idle): "Thread-1"
    wait (threading.py:324)
    run (tqdm/_monitor.py:60)
Thread 4079 (active)
    watch (torch/distributed/watch.py:9)
"""
WAITS = "all_reduce (torch/distributed/distributed_c10d.py:2501)"
LOADS = "read_sample (data.py:12)"


def spy_files(folder: Path, elsewhere: tuple[int, ...], world: int = 4) -> None:
    for rank in range(world):
        text = SPY.format(pid=500 + rank, where=LOADS if rank in elsewhere else WAITS)
        (folder / f"stack_rank_{rank}.txt").write_text(text)


def test_py_spy_stack_belongs_to_the_rank_of_its_file(tmp_path: Path) -> None:
    spy_files(tmp_path, (2,))
    facts = load_trace([tmp_path]).ranks[2]
    assert [t.name for t in facts.threads] == ["MainThread", "Thread-1", "4079"]
    assert {t.source for t in facts.threads} == {"py-spy"}
    assert tuple(facts.main_stack[0]) == ("read_sample", "data.py", 12)


def test_single_rank_with_another_stack_is_named(tmp_path: Path) -> None:
    spy_files(tmp_path, (2,))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence is Confidence.LIKELY
    assert "data.py:12 in read_sample" in found.summary


def test_call_it_waits_in_is_reported_with_its_stack(tmp_path: Path) -> None:
    spy_files(tmp_path, ())
    reads = "recv_into (socket.py:706)\n    read_sample (data.py:12)"
    (tmp_path / "stack_rank_2.txt").write_text(SPY.format(pid=502, where=reads))
    fix = diagnose(load_trace([tmp_path])).findings[0].fix
    assert fix.startswith(
        "look at data.py:12 in read_sample: a peer outside the job does not answer"
    )


@pytest.mark.parametrize("home", ["", "/opt/conda/lib/python3.10/"])
@pytest.mark.parametrize(
    "waits",
    [
        ("Condition.wait ({}threading.py:327)", "Queue.get ({}queue.py:171)"),
        ("wait ({}threading.py:320)", "result ({}concurrent/futures/_base.py:453)"),
        ("SocketIO.readinto ({}socket.py:705)", "recv ({}http/client.py:279)"),
    ],
    ids=["a queue", "a future", "a server"],
)
def test_rank_waiting_for_a_thread_or_server_waits_for_no_rank(
    tmp_path: Path, waits: tuple[str, str], home: str
) -> None:
    spy_files(tmp_path, ())
    where = "\n    ".join([*(frame.format(home) for frame in waits), "batches (prefetch.py:13)"])
    (tmp_path / "stack_rank_1.txt").write_text(SPY.format(pid=501, where=where))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    assert found.summary.startswith("Rank 1 is at prefetch.py:13 in batches while")


@pytest.mark.parametrize("elsewhere", [(), (1, 2), (0, 1, 2, 3)])
def test_stacks_without_an_outlier(tmp_path: Path, elsewhere: tuple[int, ...]) -> None:
    spy_files(tmp_path, elsewhere)
    assert not diagnose(load_trace([tmp_path])).culprits


def test_stacks_show_what_the_missing_rank_does(tmp_path: Path) -> None:
    spy_files(tmp_path, (2,))
    (tmp_path / "job.log").write_text("".join(timeout(r, 78) for r in (0, 1, 3)))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert any(f.filename == "data.py" for side in found.findings[0].sides for f in side.stack)


def spy_json(pid: int, calls: list[tuple[str, str, int]]) -> str:
    frames = [{"name": n, "filename": f, "short_filename": f, "line": at} for n, f, at in calls]
    thread = {"pid": pid, "thread_id": 1400, "thread_name": "MainThread", "active": False}
    about = {"pid": pid, "command_line": "python train.py", "parent": None}
    return json.dumps([{**thread, "frames": frames, "process_info": about}])


def test_py_spy_json_stacks_are_read(tmp_path: Path) -> None:
    waits = ("all_reduce", "/x/torch/distributed/distributed_c10d.py", 2501)
    for rank in range(4):
        inner = ("read_sample", "/app/data.py", 12) if rank == 2 else waits
        calls = [inner, ("step", "/app/train.py", 44), ("<module>", "/app/train.py", 90)]
        (tmp_path / f"spy_rank_{rank}.json").write_text(spy_json(500 + rank, calls))
    trace = load_trace([tmp_path])
    found = diagnose(trace)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert tuple(trace.ranks[2].main_stack[0]) == ("read_sample", "/app/data.py", 12)


@pytest.mark.parametrize(
    "damage",
    [{"frames": [5]}, {"frames": []}, {"thread_id": "x"}, {"pid": None}, {"process_info": 3}],
)
def test_damaged_thread_list_is_at_most_one_warning(tmp_path: Path, damage: dict[str, Any]) -> None:
    (thread,) = json.loads(spy_json(7, [("read", "data.py", 12)]))
    (tmp_path / "rank_0.json").write_text(json.dumps([{**thread, **damage}]))
    (tmp_path / "job.log").write_text(timeout(1, 7))
    assert len(load_trace([tmp_path]).warnings) <= 1


def test_rank_in_a_command_line_belongs_to_its_stack() -> None:
    named = SPY.format(pid=4711, where=WAITS).replace(
        "train.py\nPython", "train.py --rank=3\nPython"
    )
    assert trace_of(named).ranks[3].main_stack


DUMP = """[rank2]: Timeout (0:10:00)!
[rank2]: Thread 0x00007f11 (most recent call first):
[rank2]:   File "/x/threading.py", line 324 in wait
[rank2]: Thread 0x00007f22 (most recent call first):
[rank2]:   File "/a/data.py", line 12 in read_sample
[rank2]:   File "/a/train.py", line 90 in <module>
"""


def test_faulthandler_lists_the_main_thread_last() -> None:
    stack = trace_of(DUMP).ranks[2].main_stack
    assert [(f.name, f.line) for f in stack] == [("read_sample", 12), ("<module>", 90)]


PYSTACK = """Traceback for thread 928 (python) [] (most recent call last):
    (Python) File "/x/threading.py", line 324, in wait
        self.lock.acquire()

Traceback for thread 500 (python) [Has the GIL] (most recent call last):
    (Python) File "/a/train.py", line 90, in <module>
        main()
    (Python) File "/a/data.py", line 12, in read_sample
        return file.read()
"""
GDB = """Traceback (most recent call first):
  File "/a/data.py", line 12, in read_sample
    return file.read()
  File "/a/train.py", line 90, in <module>
    main()
"""
ALONE = """Stack (most recent call first):
  File "/a/data.py", line 12 in read_sample
  File "/a/train.py", line 90 in <module>
"""


@pytest.mark.parametrize("text", [PYSTACK, GDB, ALONE], ids=["pystack", "py-bt", "one thread"])
def test_stacks_of_other_tools_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "stack_rank_3.txt").write_text(text)
    stack = load_trace([tmp_path]).ranks[3].main_stack
    assert [(f.name, f.line) for f in stack] == [("read_sample", 12), ("<module>", 90)]


def test_main_thread_without_a_name_is_the_one_that_runs_a_module() -> None:
    text = (
        "Thread 0x7F4AA36D9700 (active)\n\t _flush (ray/profiling.py:97)\n\t run (threading.py:864)\n"
        "Thread 0x7F4AACDE7700 (active)\n\t main_loop (app/worker.py:1005)\n"
        "\t <module> (app/train.py:105)\n"
    )
    (process,) = trace_of(text).unranked_processes
    assert process.stack[0].line == 1005


def test_watchdog_of_an_engine_says_whose_stacks_it_takes() -> None:
    head = "[2025-10-29 11:25:58 TP{}] "
    trace = trace_of(
        head.format(3) + "Watchdog timeout (self.watchdog_timeout=300)\n"
        + head.format(6) + "Pyspy dump for PID 309:\n"
        "Process 309: sglang::scheduler_TP6\nPython v3.12.12 (/usr/bin/python3.12)\n\n"
        'Thread 309 (active): "MainThread"\n    _apply (penalty.py:78)\n'
    )  # fmt: skip
    assert trace.ranks[6].threads[0].stack[0].line == 78


def test_processes_of_an_engine_that_compute_nothing_are_no_ranks() -> None:
    text = (
        "Process 9: {}\nPython v3.12.3 (/usr/bin/python3.12)\n\n"
        'Stuck here: Thread 9 (idle): "MainThread"\n    poll (popen_fork.py:27)\n'
    )
    assert trace_of(text.format("sglang::scheduler_PP1_TP0")).unranked_processes
    for title in ("sglang::data_parallel_controller", "VLLM::APIServer"):
        assert not trace_of(text.format(title)).unranked_processes


def test_native_stack_is_its_processs() -> None:
    trace = trace_of(
        "Process 88693: sglang::scheduler_PP2_TP1\nPython v3.12.3 (/usr/bin/python3.12)\n\n"
        'Thread 88693 (idle): "MainThread"\n    pthread_cond_timedwait (libc.so.6)\n'
        "    c10d::ProcessGroupGloo::RecvWork::wait (libtorch_cpu.so)\n"
    )
    assert [c.text for c in trace.claims if c.details.stands] == [
        "process 88693 (sglang::scheduler_PP2_TP1) stands in c10d::ProcessGroupGloo::RecvWork::wait "
        "(libtorch_cpu.so)"
    ]


def test_newest_stack_dump_of_a_rank_counts() -> None:
    later = DUMP.replace("data.py", "save.py")
    assert trace_of(DUMP + later).ranks[2].main_stack[0].filename == "/a/save.py"


def test_debugger_backtrace_is_identified() -> None:
    text = "".join(
        f"#{i}  0x00007f1{i} in pthread_cond_wait () from /lib/libpthread.so.0\n" for i in range(9)
    )
    (warning,) = trace_of('Thread 1 (Thread 0x7f11 (LWP 12) "python"): Error:\n' + text).warnings
    assert "debugger" in warning


@pytest.mark.parametrize(
    ("head", "tail"),
    [("=== Rank {r}: node0:{p} ===\n", ""), ("<h2>Rank {r}: node0:{p}</h2><pre>\n", "</pre>\n")],
)
def test_stacks_of_torchs_debug_server_are_read(tmp_path: Path, head: str, tail: str) -> None:
    text = "".join(
        head.format(r=r, p=2000 + r)
        + SPY.format(pid=500 + r, where=LOADS if r == 2 else WAITS)
        + tail
        for r in range(4)
    )
    (tmp_path / "pyspy_dump_20260816_121000.txt").write_text(
        text.replace("<module>", "&lt;module&gt;") if tail else text
    )
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))


def test_printed_dump_is_read(tmp_path: Path) -> None:
    entry = {
        "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 7,
        "p2p_seq_id": 0, "op_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 1,
        "input_sizes": [[4]], "output_sizes": [[4]], "state": "scheduled", "retired": False, "is_p2p": False,
    }  # fmt: skip
    for rank in range(2):
        dump = {"version": "2.4", "entries": [entry]}
        (tmp_path / f"dump_rank_{rank}.txt").write_text(repr(dump))
    trace = load_trace([tmp_path])
    assert sorted(trace.ranks) == [0, 1]
    assert trace.records["collective_seq"].tolist() == [7, 7]


@pytest.mark.parametrize(
    "text",
    ["{'entries': __import__('os').system('x')}", "{'entries': " + "[" * 9000, "{'entries': 1 +"],
)
def test_printed_dump_is_never_executed(tmp_path: Path, text: str) -> None:
    (tmp_path / "dump_rank_0.txt").write_text(text)
    with pytest.raises(NothingReadable) as error:
        load_trace([tmp_path])
    assert len(error.value.warnings) == 1


def error_file(folder: Path, local: int, error: str, at: int) -> None:
    (folder / str(local)).mkdir(parents=True)
    stack = f'Traceback (most recent call last):\n  File "/a/train.py", line 9, in main\n    f()\n{error}\n'
    document = {
        "message": {"message": error, "extraInfo": {"py_callstack": stack, "timestamp": str(at)}}
    }
    (folder / str(local) / "error.json").write_text(json.dumps(document))


def test_torch_elastic_error_files_are_read(tmp_path: Path) -> None:
    lost = "RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1"
    error_file(tmp_path / "attempt_0", 0, lost, 1_755_346_201)
    error_file(tmp_path / "attempt_0", 3, "KeyError: 'image'", 1_755_346_200)
    trace = load_trace([tmp_path])
    exception = trace.ranks[3].exception
    assert exception is not None
    assert (exception.type_name, exception.message) == ("KeyError", "'image'")
    assert exception.stack[0].line == 9
    found = diagnose(trace)
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (3,))


def ras(
    counts: dict[int, dict[str, int]], missing: dict[int, bool] | None = None, **more: Any
) -> dict[str, Any]:
    status = {"init_state": 0, "async_error": 0, "abort_flag": False}
    entry = {"host": "10.0.0.1", "nvml_dev": 0}
    return {
        "hash": "0xfa93",
        "size": len(counts) + len(missing or {}),
        "ranks": [
            entry | {"rank": r, "pid": 500 + r, "cuda_dev": r, "status": status, "collective_counts": c}
            for r, c in counts.items()
        ],
        "missing_ranks": [
            entry | {"rank": r, "pid": 500 + r, "cuda_dev": r, "status": {"unresponsive": True, "considered_dead": d}}
            for r, d in (missing or {}).items()
        ],
    } | more  # fmt: skip


def report(folder: Path, *communicators: dict[str, Any]) -> Path:
    path = folder / "ras.json"
    path.write_text(
        json.dumps(
            {"nccl_version": "2.28.7", "timestamp": "x", "communicators": list(communicators)}
        )
    )
    return path


def test_rank_that_launched_less_is_missing(tmp_path: Path) -> None:
    counts = {
        r: {"AllReduce": 40 if r == 2 else 41, "Broadcast": 3, "Send": 9 * r} for r in range(4)
    }
    found = diagnose(load_trace([report(tmp_path, ras(counts))]))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert (found.findings[0].op, found.findings[0].seq) == ("all_reduce", 44)


def test_rank_that_is_behind_because_it_waits_elsewhere_is_a_victim(tmp_path: Path) -> None:
    world = ras({r: {"AllReduce": 10 if r in (2, 3) else 11} for r in range(4)})
    pair = ras({0: {"AllGather": 5}, 1: {"AllGather": 6}}, hash="0xbeef")
    for entry, rank in zip(pair["ranks"], (2, 3), strict=True):
        entry.update(pid=500 + rank, cuda_dev=rank)
    found = diagnose(load_trace([report(tmp_path, world, pair)]))
    assert found.culprits == (2,)


def test_rank_dead_in_a_ras_report_is_lost(tmp_path: Path) -> None:
    counts = {r: {"AllReduce": 41} for r in (0, 1, 3)}
    found = diagnose(load_trace([report(tmp_path, ras(counts, {2: True}))]))
    assert (found.verdict.value, found.culprits) == ("rank_lost", (2,))


def test_equal_counts_show_no_hang(tmp_path: Path) -> None:
    found = diagnose(load_trace([report(tmp_path, ras({r: {"AllReduce": 41} for r in range(4)}))]))
    assert not found.culprits
    assert found.verdict.value in ("inconclusive", "healthy")


@pytest.mark.parametrize(
    "damage",
    [
        {"communicators": [{"ranks": "x", "missing_ranks": [3, {"rank": -5}], "size": "many"}]},
        {
            "communicators": [
                {"ranks": [{"rank": 1 << 40, "pid": [], "collective_counts": {"a": {}}}]}
            ]
        },
        {"communicators": []},
    ],
)
def test_damaged_report_is_at_most_one_warning(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = tmp_path / "ras.json"
    path.write_text(json.dumps({"nccl_version": "2.28.7"} | damage))
    with pytest.raises(NothingReadable) as error:
        diagnose(load_trace([path]))
    assert len(error.value.warnings) == 1


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ([{"header": {"rank": 0}, "coll_perf": {"coll": "AllReduce"}}], "inspector"),
        ({"traceEvents": []}, "profiler"),
    ],
)
def test_unused_file_is_identified(tmp_path: Path, document: Any, word: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(NothingReadable) as error:
        load_trace([path])
    (warning,) = error.value.warnings
    assert word in warning


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("rank_0.ring.gz", gzip.compress(b"HSRING\x00\x01" + bytes(5000)), "unpack it first"),
        ("a.journal.gz", gzip.compress(b'{"hangscope":"journal/1"}\n'), "unpack it first"),
        ("a.journal", b'{"hangscope":"journal/1"}\n', "tells of no rank"),
    ],
    ids=["ring", "journal", "nobody's"],
)
def test_known_but_unused_file_is_identified(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(NothingReadable, match=f"{name}: .*{why}"):
        load_trace([tmp_path])


@pytest.mark.parametrize(
    ("later", "expected"),
    [(0, ("missing_rank", (2,))), (100, ("inconclusive", ()))],
    ids=["stands", "moves"],
)
@pytest.mark.parametrize("form", ["two files", "one file", "json"])
def test_two_reports_of_ras_are_compared(
    form: str, later: int, expected: tuple[str, tuple[int, ...]], tmp_path: Path
) -> None:
    """A rank that is behind in one report may only have been a moment later than the others."""
    for place, more in enumerate((0, later)):
        counts = {r: {"AllReduce": 120 + more - (r == 2)} for r in range(4)}
        document = {"nccl_version": "2.28.9", "communicators": [ras(counts)]}
        text = RAS_TEXT.format(most=120 + more, least=119 + more)
        if form == "json":
            (tmp_path / f"ras{place}.json").write_text(json.dumps(document))
        else:
            name = f"ras{place}.txt" if form == "two files" else "ras.txt"
            with (tmp_path / name).open("a") as file:
                file.write(text)
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == expected
    assert ("moves" in found.summary) is (later > 0)
    if form != "json" and not later:
        assert "in two reports" in found.summary
        assert "process 4712 on n0, GPU 2" in found.summary


RAS_TEXT = """Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  MISMATCH

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation {most}
  Rank 2 has launched up to operation {least} -- GPU 2 managed by process 4712 on node n0
"""
