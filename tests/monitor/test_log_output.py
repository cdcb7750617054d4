"""The monitor's output in a log that other processes write to as well."""

from __future__ import annotations

import io

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.monitor.log_output import print_report
from tests.diagnosis.builder import Job


def test_report_begins_on_a_new_line() -> None:
    job = Job(3, live=True)
    job.steps(3)
    for rank in (0, 2):
        job.op(rank, done=False)
    log = io.StringIO()
    log.write("\r 37%|###       | 37/100")
    print_report(diagnose(job.trace()), where="more: hangscope analyze run", out=log)
    lines = log.getvalue().splitlines()
    assert any(line.startswith("[hangscope] Rank 1 never joined") for line in lines)
    assert lines[-1] == "[hangscope] more: hangscope analyze run"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("log", "no_color", "coloured"),
    [(io.StringIO(), "", False), (Terminal(), "", True), (Terminal(), "1", False)],
)
def test_only_a_terminal_gets_colours(
    monkeypatch: pytest.MonkeyPatch, log: io.StringIO, no_color: str, coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    job = Job(2, live=True)
    job.steps(3)
    job.op(0, done=False)
    print_report(diagnose(job.trace()), where="more", out=log)
    assert "Rank 1 never joined" in log.getvalue()
    assert ("\x1b[" in log.getvalue()) is coloured
