"""A job's files are analysed where people sit: on macOS and Windows, too."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
REPLAYED = (
    "d19-shape", "d20-sigkill", "log-exception", "log-peers-lost-two-nodes", "loader-lock",
    "native-operation", "nccl-sigstop", "order-inversion", "quiescent", "wrapped-ring",
)  # fmt: skip


def commands(out: Path) -> list[list[str]]:
    """Command lines of everything that reads a job's files, writing into a folder."""
    hung = str(FIXTURES / "d19-shape" / "dumps")
    exports = [
        ["export", hung, "--to", form, "-o", str(out / form)]
        for form in ("flight-recorder", "perfetto", "html", "fixture")
    ]
    return [
        ["replay", *(str(FIXTURES / name) for name in REPLAYED)],
        ["analyze", hung, "--all"],
        ["analyze", str(FIXTURES / "log-peers-lost-two-nodes" / "dumps"), "--json"],
        ["slow", str(FIXTURES / "healthy-ddp" / "dumps")],
        ["tui", hung, "--screenshot", str(out / "screen.svg")],
        *exports,
    ]


def main(out: str) -> None:
    """Run all of them in this process, and print how each ended."""
    from hangscope.cli import cli

    ended = []
    for command in commands(Path(out)):
        said = io.TextIOWrapper(io.BytesIO(), "utf-8")
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                cli(command)
            except SystemExit as end:
                said.seek(0)
                ended.append((end.code, said.read()))
    print(json.dumps(ended))


@pytest.mark.long
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_files_are_analysed_without_what_only_linux_has(tmp_path: Path, system: str) -> None:
    done = subprocess.run(
        [
            # Text without an encoding would be read as the system's code page.
            *(sys.executable, "-X", "warn_default_encoding"),
            *("-W", "error::EncodingWarning:hangscope"),
            *("-m", "tests.other_systems", system, "tests.test_other_systems", str(tmp_path)),
        ],
        cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = commands(tmp_path)
    for command, (code, said) in zip(lines, json.loads(done.stdout), strict=True):
        assert code in (None, 0, 1 if command[0] == "analyze" else 0), (command, said)
        assert "error" not in said.lower() or command[0] == "analyze", (command, said)
    assert {path.name for path in tmp_path.iterdir()} == {
        "screen.svg", "flight-recorder", "perfetto", "html", "fixture",
    }  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
