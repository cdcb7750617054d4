"""Linux signal numbers, on any machine."""

from __future__ import annotations

import signal
import sys

import pytest

from hangscope.trace import signals


@pytest.mark.skipif(sys.platform != "linux", reason="other systems number them otherwise")
def test_signal_numbers_are_those_of_linux() -> None:
    standard = [known for known in signal.Signals if known < signal.SIGRTMIN]
    assert len(standard) == 31
    for known in standard:
        assert signals.name_of(known) == known.name
        assert signals.number_of(known.name) == known
        assert getattr(signals, known.name, known) == known


def test_signal_names_may_lack_their_prefix_or_be_unknown() -> None:
    assert signals.number_of("SEGV") == signals.SIGSEGV
    assert signals.number_of("") is None
    assert signals.name_of(0) == "signal 0"
    assert signals.name_of(63) == "signal 63"
