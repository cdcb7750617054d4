"""Damaged, hostile, large or many dump files: one warning each, and the rest is read."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hangscope.trace.files.sniff import Kind, sniff_file
from hangscope.trace.files.unpickle import load_plain
from hangscope.trace.load import NothingReadable, load_trace
from hangscope.trace.loading import parallel
from hangscope.trace.loading.budget import default_budget
from hangscope.trace.loading.one_file import Loaded, Task

from .dumps import BASE_NS, USUAL, dump, entry, ops, pending, write


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("trace_1", b"", "empty file"),
        ("trace_1", b"\0" * 100, "nothing but zero bytes"),
        ("trace_1.json", b'{"entries": [', "damaged or truncated JSON"),
        ("trace_1.json", b'{"ray_train_dump_error": "timeout"}', "placeholder instead of a dump"),
        ("trace_1", b"\x80\x02}q\x00(X\x07", "truncated pickle"),
        ("trace_1", pickle.dumps(print), "wants to import builtins.print; refused"),
        ("trace_1", pickle.dumps(5), "no Flight Recorder dump"),
        ("trace_1", pickle.dumps({"entries": 5}), "its entries are a int, not a list"),
        ("trace_1", pickle.dumps({"entries": [1, "x", None]}), "none of its entries is a record"),
        ("trace_1.gz", b"\x1f\x8b\x08\x00broken", "damaged gzip data"),
        ("trace_1.zip", b"PK\x03\x04rest", "a zip archive; name it on the command line"),
        ("trace_1", b"\x80\x02Nr\xff\xff\xff\x7f.", "more memory than there is"),
        ("trace_1", b"HSRING" + b"\0" * 50, ""),
        ("notes.txt", b"nothing of interest\n", "no line in it that HangScope knows"),
        ("all.yaml", b"rank: 1\nentries:\n- record_id: 0\n  collective_seq_id: 1\n", "in YAML"),
        ("ops.csv", b"host,rank,seq_id,op\nn1,1,7,all_reduce\n", "a table with the columns host"),
    ],
)
def test_damaged_file_is_one_warning_and_the_rest_is_read(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    write(tmp_path, "trace_0", dump([entry(1), pending(2)]))
    (tmp_path / name).write_bytes(content)
    trace = load_trace([tmp_path])
    assert ops(trace, 0) == USUAL
    assert list(trace.ranks) == [0]
    assert len(trace.warnings) == 1
    assert trace.warnings[0].startswith(str(tmp_path / name))
    assert problem in trace.warnings[0]
    assert "\n" not in trace.warnings[0]


@pytest.mark.parametrize(("later_s", "notes"), [(600, 0), (5 * 3600, 1), (90 * 86400, 0)])
def test_date_of_a_copied_dump_is_no_waiting_time(tmp_path: Path, later_s: int, notes: int) -> None:
    for rank in range(2):
        write(tmp_path, f"trace_{rank}", dump([entry(1), pending(2)]))
        date_s = BASE_NS // 10**9 + later_s
        os.utime(tmp_path / f"trace_{rank}", (date_s, date_s))
    trace = load_trace([tmp_path])
    told = [w for w in trace.warnings if "the waiting was shorter than shown" in w]
    assert len(told) == 2 * notes == len(trace.warnings)


def test_nothing_readable_gives_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "b.txt").write_text("hello\n")
    with pytest.raises(NothingReadable) as caught:
        load_trace([tmp_path, tmp_path / "absent"])
    assert len(caught.value.warnings) == 3


def test_control_characters_in_names_never_reach_a_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07dp\x1b[31m\n\u202ered"
    config = {"0": {"name": "0", "desc": evil, "ranks": "[0]"}}
    frames = [{"name": evil, "filename": evil, "line": 1}]
    rows = [entry(1, f"nccl:{evil}", process_group=("0", evil), frames=frames)]
    write(tmp_path, "trace_0", dump(rows, pg_config=config))
    bad = tmp_path / "bad\x1b[2J_1"
    bad.write_bytes(b"")
    trace = load_trace([tmp_path])
    said = repr((trace.groups, trace.signatures, trace.stacks, trace.warnings, trace.sources))
    assert "\\x1b" not in said
    assert "\\u202e" not in said
    assert "\\x07" not in said


def test_progress_counts_files(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, f"trace_{rank}", dump([entry(1)], 3))
    calls: list[tuple[int, int]] = []
    load_trace([tmp_path], progress=lambda done, found: calls.append((done, found)))
    done = dict.fromkeys(call for call in calls if call[0])  # 0 is said while the first is read
    assert list(done) == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.long
def test_pickle_that_takes_too_long_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "SECONDS_FLOOR", 3.0)  # a busy machine
    monkeypatch.setattr("threading.active_count", lambda: 1)  # a forked worker has that limit, too
    write(tmp_path, "trace_0", dump([entry(1), pending(2)]))
    # A tuple of two of itself, fifty deep, as a key: hashing it takes 2**50 steps.
    (tmp_path / "trace_1").write_bytes(b"\x80\x04})" + b"2\x86N0" * 50 + b"Ns.")
    trace = load_trace([tmp_path])
    assert ops(trace, 0) == USUAL
    (warning,) = trace.warnings
    assert warning.startswith(f"{tmp_path}/trace_1: takes too long to read")


def test_nested_references_cost_no_more_than_the_file(tmp_path: Path) -> None:
    nested: Any = []
    for _ in range(60):
        nested = [nested, nested]
    row = entry(1)
    row.update(dict.fromkeys(("frames", "input_sizes", "output_sizes", "process_group"), nested))
    write(tmp_path, "trace_0", dump([row] * 5))
    circle: list[Any] = []
    circle.append(circle)
    row = dict(row, **dict.fromkeys(("frames", "input_sizes", "process_group"), circle))
    write(tmp_path, "trace_1", dump([row] * 5))
    assert len(load_trace([tmp_path]).records) == 10


def test_many_large_files_are_read_by_workers(tmp_path: Path) -> None:
    rows = [entry(n, thread_name="x" * 3000 + str(n)) for n in range(1, 300)]
    for rank in range(6):
        write(tmp_path, f"trace_{rank}", dump(rows, 6))
    (tmp_path / "trace_6").write_bytes(b"\x80\x04broken" + b"x" * 10**6)
    trace = load_trace([tmp_path])
    assert len(trace.records) == 6 * 299
    assert len(trace.warnings) == 1


def test_a_new_interpreter_reads_if_other_threads_run(tmp_path: Path) -> None:
    import threading

    write(tmp_path, "trace_0", dump([entry(1), pending(2)]))
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert ops(load_trace([tmp_path]), 0) == USUAL
    finally:
        stop.set()
        thread.join()


def test_a_worker_that_dies_costs_its_own_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = parallel.read_task

    def killed(task: Task, *, isolated: bool) -> Loaded:
        if task.path.endswith("trace_3"):
            os.kill(os.getpid(), signal.SIGKILL)
        return read(task, isolated=isolated)

    monkeypatch.setattr(parallel, "read_task", killed)
    monkeypatch.setattr("threading.active_count", lambda: 1)
    for rank in range(6):
        write(tmp_path, f"trace_{rank}", dump([entry(1), pending(2)], 6))
    trace = load_trace([tmp_path])
    assert sorted(trace.ranks) == [0, 1, 2, 4, 5]
    assert [u.path for u in trace.unread] == [f"{tmp_path}/trace_3"]


@pytest.mark.parametrize("lacking", [OSError(11, "no process"), NotImplementedError("no sem_open")])
def test_without_processes_files_are_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: Exception
) -> None:
    def refused(*_: object) -> None:
        raise lacking

    monkeypatch.setattr(parallel, "ProcessPoolExecutor", refused)
    monkeypatch.setattr("threading.active_count", lambda: 1)
    write(tmp_path, "trace_0", dump([entry(1), pending(2)]))
    assert ops(load_trace([tmp_path]), 0) == USUAL


def test_interrupted_reading_leaves_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "read_task", lambda task, isolated: time.sleep(60))
    monkeypatch.setattr("threading.active_count", lambda: 1)
    before = set(multiprocessing.active_children())

    def interrupted() -> None:
        raise KeyboardInterrupt

    task = Task("x", "x", Kind("job-log"), 1)
    with pytest.raises(KeyboardInterrupt):
        list(parallel.read_in_workers([task], default_budget(), waiting=interrupted))
    assert set(multiprocessing.active_children()) == before


def test_what_dumps_have_in_common_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_limit_time", lambda seconds: None)
    frames = [{"name": f"layer_{i}", "filename": "model.py", "line": i} for i in range(200)]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": list(range(5000))}}
    tasks = []
    for rank in range(3):
        rows = [entry(1, frames=frames)]
        write(tmp_path, f"trace_{rank}", dump(rows, pg_config=config))
        path = str(tmp_path / f"trace_{rank}")
        tasks.append(Task(path, path, sniff_file(path), os.path.getsize(path)))
    one, three = (len(parallel._read_piece(tasks[:count])) for count in (1, 3))
    assert three - one < 2_000 < 15_000 < one


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(print),
        b"cos\nsystem\n(S'id'\ntR.",
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"\x80\x04)" + b"2\x86" * 60 + b".",
        b"\x80\x04)\x94" + b"".join(b"h%ch%c\x86\x94" % (i, i) for i in range(50)) + b".",
        b"Np99999999999\n.",
        b"\x80\x04Pabc\n.",
        b"\x80\x02\x82\x01.",
        b"(lp0\n",
        b"",
    ],
)
def test_without_a_worker_the_pickle_is_scanned(content: bytes) -> None:
    with pytest.raises(ValueError):
        load_plain(content)


def test_scan_accepts_plain_values() -> None:
    document = dump([entry(1), pending(2)])
    document["odd"] = [1.5, 2**80, True, None, "x" * 300, "é", b"abc", ()]
    for protocol in (3, 4, 5):
        assert load_plain(pickle.dumps(document, protocol)) == document


@pytest.mark.parametrize("name", ["dump_48213", "dump_pid_48213", "trace_1755000000"])
def test_number_that_is_no_rank_is_not_taken_for_one(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "job" / "dumps" / "all"  # the folders nearest by name a rank as well
    write(folder, "trace_0", dump([entry(1)]))
    write(folder, name, dump([entry(1)]))
    trace = load_trace([folder])
    assert list(trace.ranks) == [0]
    assert trace.warnings[0].endswith("put the rank at the end of its name")


def test_gzip_bomb_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zlib

    monkeypatch.setattr("threading.active_count", lambda: 1)  # a forked worker has that limit, too
    monkeypatch.setattr("hangscope.trace.files.sniff.MAX_INFLATED", 20 << 20)
    write(tmp_path, "trace_0", dump([entry(1), pending(2)]))
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = b'{"entries": ['
    with (tmp_path / "trace_1.json.gz").open("wb") as file:
        file.write(packer.compress(head))
        for _ in range(40):
            file.write(packer.compress(b" " * (1 << 20)))
        file.write(packer.flush())
    trace = load_trace([tmp_path])
    assert ops(trace, 0) == USUAL
    assert len(trace.warnings) == 1
    assert "inflates to more than any dump holds" in trace.warnings[0]
