"""Calls the ``hangscope`` command in this process: importing what it needs takes longer than it."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hangscope.cli import main


def called(*arguments: str, cwd: Path | None = None, **variables: str) -> CompletedProcess[str]:
    """The command line's exit status and what it prints, with variables beside this process's."""
    said = {name: io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for name in ("stdout", "stderr")}
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in said.items():
            patch.setattr(sys, name, stream)
        patch.setattr(sys, "argv", ["hangscope", *arguments])
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.chdir(cwd or os.getcwd())
        with pytest.raises(SystemExit) as ended:
            main()
    texts = []
    for stream in said.values():
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    code = ended.value.code
    return CompletedProcess(list(arguments), code if isinstance(code, int) else 0, *texts)
