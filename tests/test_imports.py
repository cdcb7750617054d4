"""What it costs a process to have HangScope installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def loaded_after(code: str, **variables: str) -> set[str]:
    """Modules loaded in a fresh interpreter after some code, HANGSCOPE unset unless given."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HANGSCOPE")}
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(chr(10).join(sys.modules))"],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(result.stdout.split())


@pytest.mark.long
def test_import_torch_loads_only_autoload() -> None:
    ours = {name for name in loaded_after("import torch") if name.startswith("hangscope")}
    assert ours == {"hangscope", "hangscope._version", "hangscope.autoload"}


def test_import_hangscope_is_cheap() -> None:
    loaded = loaded_after("import hangscope")
    assert not loaded & {"torch", "numpy", "pandas", "rich", "textual"}


def test_help_needs_neither_torch_nor_pandas() -> None:
    code = (
        "import sys\nfrom hangscope.cli import cli\n"
        "try: cli(['--help'])\nexcept SystemExit as e: assert e.code == 0"
    )
    assert not loaded_after(code) & {"torch", "pandas", "numpy", "textual"}


@pytest.mark.long
def test_malformed_settings_are_one_warning_each_per_node_and_record_nothing() -> None:
    code = (
        "import torch; from hangscope.recording.settings import settings_from_process as read\n"
        "print(read().timeout_s)"
    )
    warned = []
    for local_rank in ("0", "1"):
        place = {"RANK": local_rank, "WORLD_SIZE": "2", "LOCAL_RANK": local_rank}
        asked = {"HANGSCOPE": "perhaps", "HANGSCOPE_TIMEOUT": "2m"}
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **asked, **place, "LOCAL_WORLD_SIZE": "2"},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert result.stdout.strip() == "120.0"
        warned.append(result.stderr)
    assert [said.count("[hangscope]") for said in warned] == [2, 0]
    assert "HANGSCOPE='perhaps' is not understood" in warned[0]
