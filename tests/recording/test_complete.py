"""The recorder is complete: real jobs that check every way of issuing a collective.

Each check runs inside the job and compares what the ring says with what was done, and with torch's
own recorder and counters where those exist. The names of the checks are the coverage table of
``docs/recorder.md`` (``python -m tests.recording.coverage``).
"""

from __future__ import annotations

import re

import pytest

from tests.recording.coverage import checks_of
from tests.recording.launcher import complete_job

pytestmark = pytest.mark.xdist_group("complete")


@pytest.mark.parametrize("check", checks_of("collectives_job"))
def test_collectives_are_recorded(check: str) -> None:
    complete_job("collectives_job").assert_ok(check)


@pytest.mark.parametrize("check", checks_of("parallel_job"))
def test_parallel_libraries_are_recorded(check: str) -> None:
    complete_job("parallel_job").assert_ok(check)


@pytest.mark.parametrize("script", ["collectives_job", "parallel_job"])
def test_no_messages_and_no_missing_checks(script: str) -> None:
    job = complete_job(script)
    assert job.returncode == 0, job.output[-3000:]
    assert job.said == []
    assert not re.search(r"UserWarning.*hangscope", job.output)
    for rank, checks in job.ranks.items():
        assert sorted(checks) == sorted(checks_of(script)), rank
