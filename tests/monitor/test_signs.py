"""What a rank's facts say of the moment."""

from __future__ import annotations

import pytest

from hangscope.monitor.signs import has_failed
from hangscope.trace.model import ExceptionFacts, ExitFacts, RankFacts


@pytest.mark.parametrize(
    ("exit_", "message", "expected"),
    [
        (ExitFacts("signal", signal=9), None, True),
        (ExitFacts("signal", signal=11), None, True),
        (ExitFacts("signal", signal=9, by_launcher=True), None, False),
        (ExitFacts("signal", signal=15), None, False),
        (ExitFacts("code", code=3), None, False),
        (None, "a bad sample", True),
        (None, "Connection closed by peer [::1]:12", False),
        (None, None, False),
    ],
)
def test_whose_status_adds_nothing(
    exit_: ExitFacts | None, message: str | None, expected: bool
) -> None:
    raised = ExceptionFacts("RuntimeError", message) if message else None
    assert has_failed(RankFacts(0, exit=exit_, exception=raised)) == expected
