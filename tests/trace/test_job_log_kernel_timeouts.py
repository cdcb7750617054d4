"""Waits that a kernel itself gave up: symmetric memory, DeepEP, userbuffers."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict

from .logs import claims, timeout, trace_of

SIGNAL = (
    "{label}[FATAL] CUDASymmetricMemory::barrier: rank {own} failed to receive signal from rank "
    "{peer} on channel 0 after 10000 microseconds\n"
)
TRAP = (
    "[rank{rank}]: Traceback (most recent call last):\n"
    '[rank{rank}]:   File "/job/train.py", line 5, in step\n'
    "[rank{rank}]: torch.AcceleratorError: CUDA error: unspecified launch failure\n"
)


def signal(own: int, peer: int, label: str = "") -> str:
    return SIGNAL.format(own=own, peer=peer, label=label)


def test_rank_all_others_wait_for_is_missing_without_a_device_failure() -> None:
    text = "".join(signal(r, 2) for r in (0, 1, 3)) + "".join(TRAP.format(rank=r) for r in (0, 1))
    found = diagnose(trace_of(text))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))
    assert found.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    "text",
    [signal(0, 1) + signal(1, 0), signal(1, 2, "[rank5]:") + signal(0, 2, "[rank4]:")],
    ids=["each waits for the other", "places of a smaller group"],
)
def test_inconclusive_numbers_name_no_rank(text: str) -> None:
    found = diagnose(trace_of(text))
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())


DISPATCH = (
    "{label} Traceback (most recent call last):\n"
    '{label}   File "/job/deep_ep/buffer.py", line 376, in dispatch\n'
    "{label} RuntimeError: DeepEP error: {words}\n"
)


@pytest.mark.parametrize("words", ["timeout (dispatch CPU)", "CPU recv timeout"])
def test_rank_that_timed_out_waiting_for_experts_did_not_crash(words: str) -> None:
    """Their peers are late: in a job of many ranks nearly all of them raise so."""
    one = diagnose(trace_of(DISPATCH.format(label="[rank428]:", words=words)))
    assert (one.verdict, one.culprits) == (Verdict.INCONCLUSIVE, ())
    failed = DISPATCH.format(label="[rank3]:", words="x").replace(
        "RuntimeError: DeepEP error", "KeyError"
    )
    both = DISPATCH.format(label="[rank1]:", words=words) + failed
    assert diagnose(trace_of(both)).culprits == (3,)


def test_failed_launch_without_such_a_kernel_is_an_own_failure() -> None:
    assert diagnose(trace_of(TRAP.format(rank=1) + timeout(0, 9))).culprits == (1,)


@pytest.mark.parametrize(
    "line",
    [
        "DeepEP timeout check failed: rank = 6, thread = 5, value = 1024)",
        "DeepEP dispatch NVL receiver timeout, channel: 7, RDMA: 0, nvl: 7, src RDMA: 1",
        "NVONLY RSBAR:SM 1 [7]:expecting 67 got 66",
    ],
)
def test_kernel_message_is_a_sign(line: str) -> None:
    trace = trace_of(line + "\n")
    assert len(claims(trace, "timeout")) == 1
    assert not diagnose(trace).culprits
