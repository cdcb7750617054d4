"""Source lines are quoted only from files of the job itself."""

from __future__ import annotations

import os
import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hangscope.cli import cli
from hangscope.diagnosis.model import Diagnosis
from hangscope.report.source_lines import Sources
from hangscope.ring.process_identity import boot_id
from hangscope.trace import formats
from hangscope.trace.model import Frame, Source
from tests import view_samples as samples
from tests.live_rings import RingRank

LINE = "loader = DataLoader(secret_name)"
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


def program(folder: Path, name: str = "train.py") -> Frame:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{LINE}\n")
    return Frame("<module>", str(folder / name), 1)


def recorded(folder: Path, frame: Frame, boot: str, *callers: Frame) -> Diagnosis:
    """A diagnosis of a ring in ``folder`` whose processes began in ``frame``, or its callers."""
    folder.mkdir(exist_ok=True)
    ring = RingRank(folder, 0, 2, boot_id=boot).ring.path
    diagnosis = samples.hang(loader=(frame, *callers)).diagnosis
    found: Diagnosis = replace(diagnosis, sources=(Source(str(ring), formats.RING, rank=0),))
    return found


def test_job_of_this_machine_is_quoted(tmp_path: Path) -> None:
    frame = program(tmp_path / "code")
    ours = recorded(tmp_path / "run", frame, boot_id())
    assert Sources.of(ours).line(frame) == LINE
    outside = program(tmp_path / "elsewhere")
    assert Sources.of(ours).line(outside) == ""


def test_program_of_a_spawned_rank_is_quoted(tmp_path: Path) -> None:
    """Its main module is no frame of its stack: another process has called the function in it."""
    frame = program(tmp_path / "code")._replace(name="main")
    spawned = Frame("spawn_main", "/usr/lib/python3.11/multiprocessing/spawn.py", 122)
    ours = recorded(tmp_path / "run", frame, boot_id(), spawned, Frame("<module>", "<string>", 1))
    assert Sources.of(ours).line(frame) == LINE


def test_job_of_another_machine_is_quoted_only_on_request(tmp_path: Path) -> None:
    frame = program(tmp_path / "code")
    theirs = recorded(tmp_path / "run", frame, "another boot")
    assert Sources.of(theirs).line(frame) == ""
    asked = replace(theirs, source_directories=(str(tmp_path / "code"),))
    assert Sources.of(asked).line(frame) == LINE


def test_one_foreign_file_among_the_evidence_is_enough(tmp_path: Path) -> None:
    frame = program(tmp_path / "code")
    ours = recorded(tmp_path / "run", frame, boot_id())
    received = Source(str(tmp_path / "received" / "dump_0"), formats.PICKLE, rank=0)
    assert Sources.of(replace(ours, sources=(*ours.sources, received))).line(frame) == ""


@as_root
def test_ring_that_somebody_else_has_written_counts_as_foreign(tmp_path: Path) -> None:
    frame = program(tmp_path / "code")
    forged = recorded(tmp_path / "run", frame, boot_id())
    os.chown(forged.sources[0].path, NOBODY, NOBODY)
    assert Sources.of(forged).line(frame) == ""


def test_links_pipes_devices_and_large_files_are_not_quoted(tmp_path: Path) -> None:
    inside = tmp_path / "code"
    target = program(tmp_path / "elsewhere")
    program(inside)
    (inside / "link.py").symlink_to(target.filename)
    (inside / "folder").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(inside / "pipe.py")
    (inside / "zero.py").symlink_to("/dev/zero")
    with (inside / "huge.py").open("wb") as file:
        file.write(f"{LINE}\n".encode())
        file.truncate(1 << 30)
    (inside / "id_rsa").write_text(f"{LINE}\n")
    sources = Sources(directories=(str(inside),))
    names = ["link.py", "folder/train.py", "../elsewhere/train.py", "pipe.py", "zero.py"]
    for name in (*names, "huge.py", "id_rsa", "nul\0.py", "train.py/x.py"):
        assert sources.line(Frame("f", f"{inside}/{name}", 1)) == "", name
    assert sources.line(Frame("f", "train.py", 1)) == ""
    assert sources.line(Frame("f", f"{inside}/train.py", 1)) == LINE


@as_root
def test_file_of_another_user_is_not_quoted(tmp_path: Path) -> None:
    frame = program(tmp_path)
    os.chown(frame.filename, NOBODY, NOBODY)
    assert Sources(directories=(str(tmp_path),)).line(frame) == ""


@pytest.fixture
def dump_from_elsewhere(tmp_path: Path) -> Path:
    """Dumps of a deadlock that name a Python file of this machine."""
    frame = program(tmp_path / "home")
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    for rank in range(2):
        entry = {
            "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"),
            "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1, "is_p2p": False,
            "profiling_name": ("nccl:all_reduce", "nccl:broadcast")[rank],
            "time_created_ns": time.time_ns(), "state": "scheduled", "retired": False,
            "timeout_ms": 1000,
            "input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"],
            "output_dtypes": ["Float"],
            "frames": [{"name": "main", "filename": frame.filename, "line": 1}],
        }  # fmt: skip
        dump = {
            "version": "2.10",
            "entries": [entry],
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
            "pg_status": {"0": {"last_enqueued_collective": 1}},
        }
        (dumps / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))
    return dumps


@pytest.mark.long
def test_every_command_that_quotes_asks_for_the_source_of_foreign_dumps(
    dump_from_elsewhere: Path, tmp_path: Path
) -> None:
    home, page, picture = tmp_path / "home", tmp_path / "page.html", tmp_path / "out.svg"
    dumps = str(dump_from_elsewhere)
    commands = (
        (["analyze", dumps], None),
        (["export", dumps, "--to", "html", "-o", str(page)], page),
        (["tui", dumps, "--screenshot", str(picture), "--keys", "s", "--size", "200x60"], picture),
    )
    for arguments, file in commands:
        for options, expected in (([], False), (["--source", str(home)], True)):
            done = CliRunner().invoke(cli, [*arguments, *options])
            text = file.read_text() if file else done.output
            shown = "secret_name" in text.replace("&#160;", " ")
            assert shown is expected, (arguments, done.output)
