"""What a process pays for having HangScope installed."""

from __future__ import annotations

import os
import subprocess
import sys


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


def test_import_torch_loads_nothing_of_ours_beyond_autoload() -> None:
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


def test_a_malformed_switch_is_one_warning_and_no_recording() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "import torch; print('fine')"],
        env={**os.environ, "HANGSCOPE": "perhaps", "RANK": "0", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert result.stdout.strip() == "fine"
    assert result.stderr.count("[hangscope]") == 1
    assert "HANGSCOPE='perhaps' is not understood" in result.stderr
