"""``hangscope export`` from end to end, and what a round trip through dumps keeps."""

from __future__ import annotations

import gc
import io
import json
import pickle
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hangscope.diagnosis.engine import diagnose
from hangscope.report import flight_recorder
from hangscope.trace.load import load_trace
from tests import view_samples as samples
from tests.depth import examples

HANGSCOPE = [sys.executable, "-m", "hangscope"]


def hangscope(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HANGSCOPE, *arguments], capture_output=True, text=True, timeout=90, check=False
    )


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    directory = tmp_path / "dumps"
    flight_recorder.write(samples.hang().trace, directory)
    return directory


def test_exported_trace_file_has_every_rank_and_the_summary(dumps: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    run = hangscope("export", str(dumps), "--to", "perfetto", "-o", str(out))
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    document = json.loads(out.read_text())
    assert {e["pid"] for e in document["traceEvents"]} == {0, 1, 2, 3}
    assert "Rank 2" in document["otherData"]["summary"]


def test_exported_page_names_the_rank(dumps: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    run = hangscope("export", str(dumps), "--to", "html", "-o", str(out))
    assert run.returncode == 0, run.stderr
    assert out.read_text().startswith("<!doctype html>")
    assert "Rank 2" in out.read_text()


def test_exported_dumps_are_exported_unchanged(dumps: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    run = hangscope("export", str(dumps), "--to", "flight-recorder", "-o", str(again))
    assert run.returncode == 0, run.stderr
    for file in sorted(dumps.iterdir()):
        assert (
            pickle.loads((again / file.name).read_bytes())["entries"]
            == (pickle.loads(file.read_bytes())["entries"])
        )


@pytest.mark.long
def test_export_says_if_its_dumps_will_be_judged_differently(dumps: Path, tmp_path: Path) -> None:
    """What a log says of a rank's end means little without the rest of the log: dumps of a log
    hold the operations only."""
    log = tmp_path / "job.log"
    log.write_text(
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "train.py", line 7, in load\n'
        "[rank1]:     raise ValueError(path)\n"
        "[rank1]: ValueError: no label\n"
        "[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:4242\n"
    )
    run = hangscope("export", str(log), "--to", "flight-recorder", "-o", str(tmp_path / "log"))
    said = [line for line in run.stderr.splitlines() if "no place" in line]
    assert len(said) == 1, run.stderr
    assert said[0].endswith("instead of rank_crashed (rank 1)")
    again = hangscope("export", str(dumps), "--to", "flight-recorder", "-o", str(tmp_path / "same"))
    assert "no place" not in again.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing", "--to", "html", "-o", "x.html"], "nothing readable in missing"),
        (["DUMPS", "--to", "perfetto", "-o", "/no/such/place/x.json"], "No such file"),
    ],
)
def test_refusals_are_one_line(arguments: list[str], words: str, dumps: Path) -> None:
    run = hangscope("export", *[str(dumps) if a == "DUMPS" else a for a in arguments])
    assert run.returncode == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stderr.count("\n") == 1


NAMES = ["nccl:all_reduce", "nccl:_all_gather_base", "nccl:all_reduce_barrier", "gloo:broadcast"]
SIZES = st.lists(st.lists(st.integers(0, 2**31), max_size=3), min_size=1, max_size=2)
FRAMES = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["step", "forward"]),
            "filename": st.sampled_from(["/job/a.py", "/job/b.py"]),
            "line": st.integers(1, 10_000),
        }
    ),
    max_size=3,
)


@st.composite
def native_dump(draw: st.DrawFn) -> dict[str, Any]:
    """A dump as the NCCL backend of torch 2.13 writes it, with one rank's story in two groups."""
    entries: list[dict[str, Any]] = []
    seqs, p2p = [0, 0], 0
    at = 1_700_000_000_000_000_000
    for record in range(draw(st.integers(1, 8))):
        group = draw(st.integers(0, 1))
        is_p2p = draw(st.booleans())
        at += draw(st.integers(1, 10**9))
        done = draw(st.booleans())
        if is_p2p:
            p2p += 1
            name = draw(st.sampled_from(["nccl:send 0->1", "nccl:recv 0<-1"]))
        else:
            seqs[group] += 1
            name = draw(st.sampled_from(NAMES))
        sizes = draw(SIZES)
        entry: dict[str, Any] = {
            "record_id": record,  # the recorder counts from 0
            "pg_id": group,
            "process_group": (("0", "default_pg"), ("7", "tp"))[group],
            "collective_seq_id": seqs[group],
            "p2p_seq_id": p2p,
            "op_id": record + 1,
            "profiling_name": name,
            "time_created_ns": at,
            "input_sizes": sizes,
            "input_dtypes": ["Float"] * len(sizes),
            "output_sizes": sizes,
            "output_dtypes": ["BFloat16"] * len(sizes),
            "state": "completed" if done else "scheduled",
            "time_discovered_started_ns": at + 10 if done else None,
            "time_discovered_completed_ns": at + 2_000_010 if done else None,
            "retired": done,
            "timeout_ms": 600_000,
            "is_p2p": is_p2p,
            "thread_id": "140139504929664",
            "frames": draw(FRAMES),
        }
        if done:
            entry["duration_ms"] = 2.0
        entries.append(entry)
    return {
        "version": "2.10",
        "comm_lib_version": "",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
            "7": {"name": "7", "desc": "tp", "ranks": "[0, 1]"},
        },
        "pg_status": {},
        "entries": entries,
    }


@given(native_dump())
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
def test_round_trip_keeps_every_field_of_an_entry(tmp_path: Path, dump: dict[str, Any]) -> None:
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(pickle.dumps(dump))
    written = flight_recorder.to_dump(load_trace([file]), 0)
    assert len(written["entries"]) == len(dump["entries"])
    used = sorted({e["pg_id"] for e in dump["entries"]})
    for before, after in zip(dump["entries"], written["entries"], strict=True):
        frames = before["frames"]
        assert after.get("frames", []) == frames
        assert after.pop("thread_name") == ""  # nothing else keeps the name of a thread
        after.setdefault("frames", [])
        assert after == before, used
    assert written["pg_config"] == dump["pg_config"]


def test_round_trip_keeps_the_verdict(dumps: Path, tmp_path: Path) -> None:
    before = load_trace([dumps])
    flight_recorder.write(before, tmp_path / "again")
    after = load_trace([tmp_path / "again"])
    first, second = diagnose(before), diagnose(after)
    assert (first.verdict, first.culprits) == (second.verdict, second.culprits)
    assert first.culprits == (2,)


@pytest.mark.long
def test_torchfrtrace_judges_an_export_like_the_original(dumps: Path, tmp_path: Path) -> None:
    main = pytest.importorskip("torch.distributed.flight_recorder.fr_trace").main
    flight_recorder.write(load_trace([dumps]), tmp_path / "again")

    def said(directory: Path) -> str:
        out = io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(out):
                main([str(directory), "-o", str(tmp_path / "db")])
        finally:
            gc.enable()  # torch's loader leaves it off
        with open(tmp_path / "db", "rb") as file:
            _, database = pickle.load(file)
        return out.getvalue() + repr(database)

    assert said(dumps) == said(tmp_path / "again")


@pytest.mark.long
def test_exported_fixture_replays_and_is_not_overwritten(dumps: Path, tmp_path: Path) -> None:
    out = tmp_path / "my-hang"
    run = hangscope("export", str(dumps), "--to", "fixture", "-o", str(out), "--redact")
    assert run.returncode == 0, run.stderr
    assert 'verdict = "missing_rank"' in (out / "expected.toml").read_text()
    assert hangscope("replay", str(out)).returncode == 0
    again = hangscope("export", str(dumps), "--to", "fixture", "-o", str(out))
    assert again.returncode == 2
    assert "give a new folder" in again.stderr
    only = hangscope("export", str(dumps), "--to", "html", "-o", str(out), "--redact")
    assert only.returncode == 2
    assert "works with --to fixture only" in only.stderr
