"""What the monitor writes into a log that others write into, too."""

from __future__ import annotations

import io

from hangscope.diagnosis.engine import diagnose
from hangscope.monitor.voice import speak
from tests.diagnosis.builder import Job


def test_a_report_begins_a_line_of_its_own_behind_a_prompt_or_a_progress_bar() -> None:
    job = Job(3, live=True)
    job.steps(3)
    for rank in (0, 2):
        job.op(rank, done=False)
    log = io.StringIO()
    log.write("\r 37%|###       | 37/100")
    speak(diagnose(job.trace()), where="more: hangscope analyze run", out=log)
    lines = log.getvalue().splitlines()
    assert any(line.startswith("[hangscope] Rank 1 never joined") for line in lines)
    assert lines[-1] == "[hangscope] more: hangscope analyze run"
