"""What Python writes when it ends: the description of a signal, or an error of its own."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace.signals import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV

from .logs import timeout, trace_of

OTHERS = "".join(timeout(rank, 31) for rank in (0, 1, 3))
STACK = (
    "[rank2]: \n[rank2]: Current thread 0x00007f11 (most recent call first):\n"
    '[rank2]:   File "/job/decode.py", line 14 in crop\n'
)


def fatal(rank: int, what: str) -> str:
    return f"[rank{rank}]: Fatal Python error: {what}\n"


@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("Segmentation fault", SIGSEGV),
        ("Bus error", SIGBUS),
        ("Illegal instruction", SIGILL),
        ("Floating-point exception", SIGFPE),
        ("Aborted", SIGABRT),
    ],
)
def test_the_signal_is_the_one_that_is_described(what: str, number: int) -> None:
    end = trace_of(fatal(2, what) + STACK).ranks[2].exit
    assert end is not None
    assert end.signal == number


@pytest.mark.parametrize("what", ["Segmentation fault", "Bus error"])
def test_a_fault_is_the_ranks_own(what: str) -> None:
    found = diagnose(trace_of(fatal(2, what) + STACK + OTHERS))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))


def test_ranks_that_a_watchdog_aborts_have_not_crashed() -> None:
    """Each prints this after its timeout, where faulthandler is enabled (Ray, pytest)."""
    text = "".join(timeout(rank, 31) + fatal(rank, "Aborted") for rank in range(4))
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())


def test_abort_alone_accuses_no_rank() -> None:
    text = "(Worker[rank=6] pid=71, ip=10.0.0.9) Fatal Python error: Aborted\n"
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    absl = "".join(
        f"(W pid={70 + rank}) {timeout(rank, 31)}(W pid={70 + rank}) "
        f"*** SIGABRT received at time=1750000000 on cpu {rank} ***\n"
        for rank in range(4)
    )
    assert not diagnose(trace_of(absl)).culprits


def test_an_error_of_the_interpreter_is_the_ranks_own() -> None:
    text = fatal(2, "none_dealloc: deallocating None: a refcount error") + STACK + OTHERS
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "none_dealloc" in found.summary
