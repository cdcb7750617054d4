"""One budget in every command that reads a job, and for what comes from URLs and standard input."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from hangscope.trace.load import NothingReadable, load_trace
from hangscope.trace.loading.budget import GIB, Budget
from tests.called import called
from tests.real_jobs import environment
from tests.trace.dumps import dump, entry, pending, write

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A fixture of a job of two ranks, beside a dump and an archive that are too large."""
    made = tmp_path / "job"
    for rank in range(2):
        write(made / "dumps", f"nccl_trace_rank_{rank}", dump([entry(1), pending(2 + rank)], 2))
    large = json.dumps({"entries": [], "x": "y" * (3 * MIB)})
    (made / "dumps" / "nccl_trace_rank_9.json").write_text(large)
    with tarfile.open(made / "dumps" / "more.hangscope.tar.gz", "w:gz") as packed:
        packed.addfile(_member("x.log", 8 * MIB), io.BytesIO(b"step\n" * (2 * MIB)))
    (made / "expected.toml").write_text('verdict = "missing_rank"\nculprits = [0]\n')
    return made


def _member(name: str, size: int) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size = size
    return found


_COMMANDS = {
    "analyze": ["analyze"],
    "slow": ["slow"],
    "tui": ["tui", "--screenshot", "still.svg"],
    "doctor": ["doctor", "--run"],
    "export": ["export", "--to", "perfetto", "-o", "out.json"],
    "collect": ["collect", "-o", "out.tar.gz"],
    "replay": ["replay", "-v"],
}


@pytest.mark.parametrize("command", _COMMANDS)
def test_what_exceeds_the_budget_is_left_out_by_every_command(folder: Path, command: str) -> None:
    given = folder if command == "replay" else folder / "dumps"
    said = _run([*_COMMANDS[command], str(given)], folder.parent)
    for option in ("--max-memory", "--max-unpacked"):
        assert option in said, said


_LIMITS = ("--max-memory", "0.01", "--max-unpacked", "0.002")


def _run(arguments: list[str], place: Path) -> str:
    done = called(*arguments, *_LIMITS, cwd=place, COLUMNS="300")
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr


def _budget(written: int = GIB, seconds: float = 600) -> Budget:
    return Budget(GIB, seconds, written)


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_files_behind_urls_share_the_disk(folder: Path, protocol: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    dumps = folder / "dumps"
    url = f"file://{dumps}"
    if protocol == "memory":
        url = f"memory://{folder.name}-{protocol}"
        fsspec.filesystem("memory").put(str(dumps), url, recursive=True)
    assert sorted(load_trace([url], budget=_budget()).ranks) == [0, 1, 9]
    given = _budget(2 * MIB)
    trace = load_trace([url], budget=given)
    assert sorted(trace.ranks) == [0, 1]
    left_out = [u.path for u in trace.unread if "--max-unpacked" in u.why]
    assert f"{url}/nccl_trace_rank_9.json" in left_out
    assert given.written_bytes < 2 * MIB
    with pytest.raises(NothingReadable, match="--max-seconds"):
        load_trace([url], budget=_budget(seconds=0))


def test_an_archive_on_standard_input_shares_the_disk(folder: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        made.add(folder / "dumps", "dumps")
    dump = str(folder / "dumps" / "nccl_trace_rank_0")
    done = subprocess.run(
        [sys.executable, "-m", "hangscope", "analyze", "-", dump, *_LIMITS],
        env=environment(COLUMNS="300"), input=packed.getvalue(), capture_output=True, check=False,
    )  # fmt: skip
    said = (done.stdout + done.stderr).decode()
    assert "standard input: more than may be written" in said
    assert "--max-unpacked" in said
