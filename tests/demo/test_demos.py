"""Every demo fault: a real job under torchrun, the right verdict, in the job's own log, in time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hangscope.cli import cli
from hangscope.demos.catalogue import DEMOS, Demo
from hangscope.demos.launch import run_demo

TIMEOUT_S = 2.0
ALWAYS = ("rank-guarded", "healthy")
"""Tried by ``make test``, too."""
UNNEEDED_TIMEOUT_S = 30.0
"""For ranks that end: that is told at once. Beside other tests they may start some seconds apart,
and the first of them would wait for longer than a short timeout in earnest."""


def is_timed(demo: Demo) -> bool:
    """Whether the verdict, or its absence, depends on how long something takes."""
    return demo.hangs or demo.verdict == "healthy"


def marks(demo: Demo) -> list[pytest.MarkDecorator]:
    """All of them are tried by ``make test-all``."""
    timed = [pytest.mark.timed, pytest.mark.alone] if is_timed(demo) else []
    return timed if demo.name in ALWAYS else [*timed, pytest.mark.slow]


@pytest.mark.parametrize(
    "demo",
    [pytest.param(demo, id=demo.name, marks=marks(demo)) for demo in DEMOS],
)
def test_demo_gets_the_verdict_it_promises(demo: Demo, tmp_path: Path) -> None:
    answers: list[dict[str, Any]] = []
    texts: list[str] = []

    def inspect(directory: Path) -> None:
        command = [sys.executable, "-m", "hangscope", "analyze", str(directory), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            # Side by side, since each looks twice, a second apart.
            text = CliRunner().invoke(cli, ["analyze", str(directory)])
            answer, errors = process.communicate(timeout=60)
        status = 0 if demo.verdict == "healthy" else 1
        assert (process.returncode, text.exit_code) == (status, status), errors
        answers.append(json.loads(answer))
        texts.append(text.stdout)

    timeout_s = TIMEOUT_S if is_timed(demo) else UNNEEDED_TIMEOUT_S
    run = run_demo(demo, tmp_path / "run", timeout_s=timeout_s, inspect=inspect)
    assert answers[0]["schema"] == "hangscope/diagnosis/2"
    assert answers[0]["verdict"] == demo.verdict, texts[0]
    assert answers[0]["culprits"] == list(demo.culprits)
    if demo.verdict == "healthy":
        assert "[hangscope]" not in run.log
        assert run.ended
        return
    assert run.log.count("[hangscope] more:") == 1, "it speaks once per cause"
    for text in (run.log, texts[0]):
        assert demo.line in text
    if demo.playbook:
        assert demo.playbook in answers[0]["findings"][0]["playbook"]
    if demo.hangs and run.reported_after_s is not None:
        assert run.reported_after_s < TIMEOUT_S + 3.0
