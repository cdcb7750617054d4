"""Which call, and which group, a final traceback is about."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from tests.diagnosis.tracebacks import (
    C10D,
    REDUCE,
    TIMED_OUT,
    gave_up,
    judged,
    table,
)
from tests.trace.logs import trace_of


def in_line(rank: int, line: int, source: str, error: str = TIMED_OUT) -> str:
    """What Python prints for one rank, with the user's source line."""
    text = gave_up(rank, (("/job/train.py", line, "step"), (C10D, 3000, "all_reduce")), error)
    shown = f"[rank{rank}]:     {source}\n[rank{rank}]:     {'^' * len(source)}\n"
    return text.replace("in step\n", f"in step\n{shown}", 1)


WHOLE = "dist.all_reduce(x)"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("dist.all_reduce(x, group=self.pair)", ()),
        ("dist.all_reduce(x, group=groups[i])", ()),
        ("dist.all_reduce(x, op=SUM, process_group=mesh.get_group())", ()),
        (WHOLE, (1,)),
        ("dist.all_reduce(x, group=None)", (1,)),
        ("dist.all_reduce(x, group=dist.group.WORLD)", (1,)),
    ],
)
def test_rank_waiting_in_a_smaller_group_may_wait_for_one_that_proceeded(
    source: str, named: tuple[int, ...]
) -> None:
    text = "".join(in_line(rank, 40, WHOLE) for rank in (0, 2, 3)) + in_line(1, 55, source)
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert found.culprits == named
    if not named:
        assert found.verdict.value == "inconclusive"
        assert any("train.py:55" in line for line in found.findings[0].evidence)


@pytest.mark.parametrize(
    ("source", "named"), [("dist.all_reduce(x, group=pair)", ()), (WHOLE, (1,))]
)
def test_monitored_barrier_does_not_name_ranks_in_a_smaller_group(
    source: str, named: tuple[int, ...]
) -> None:
    """Torch's debug wrapper runs one before every call, and its lines show no group."""
    late = "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 900 ms"
    reached = (
        "RuntimeError: Rank {r} successfully reached monitoredBarrier, but received errors while "
        "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )
    text = in_line(0, 40, WHOLE, late)
    text += "".join(in_line(r, 40, WHOLE, reached.format(r=r)) for r in (2, 3))
    text += in_line(1, 55, source, reached.format(r=1))
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert found.culprits == named


HELPER = (("/job/comm.py", 5, "mean"), (C10D, 3000, "all_reduce"))

STEP = (("/job/train.py", 40, "step"), *HELPER)

SCORE = (("/job/train.py", 90, "score"), *HELPER)


def test_rank_in_a_helper_called_from_elsewhere_waits_elsewhere() -> None:
    found = judged({0: STEP, 1: SCORE, 2: STEP, 3: STEP})
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (1,))
    assert "rank 1 in all_reduce (train.py:90 in score)" in found.summary
    assert "waited in all_reduce (train.py:40 in step)" in found.summary
    assert found.findings[0].fix.startswith("compare train.py:90 in score with train.py:40 in step")


def test_truncated_or_distant_callers_of_a_helper_are_no_evidence() -> None:
    assert judged({0: STEP, 1: HELPER, 2: STEP, 3: STEP}).culprits == ()
    loop = tuple(("/job/loop.py", line, f"f{line}") for line in (1, 2, 3))
    starts = [(("/job/main.py", 7 + (rank == 1), "main"), *loop, *HELPER) for rank in range(4)]
    assert judged(dict(enumerate(starts))).culprits == ()


def test_dtensor_operation_is_compared_by_the_users_call() -> None:
    tensor = "/env/lib/python3.11/site-packages/torch/distributed/tensor/"
    ops = ("/env/lib/python3.11/site-packages/torch/_ops.py", 1279, "__call__")
    save = ("/job/train.py", 90, "save")
    frames = (save, (tensor + "_api.py", 350, "__torch_dispatch__"), ops)
    found = judged({0: frames, 1: REDUCE, 2: REDUCE, 3: REDUCE})
    assert "rank 0 in an operation of torch (train.py:90 in save)" in found.summary
    assert "compare train.py:90 in save with train.py:40 in step" in found.findings[0].fix
