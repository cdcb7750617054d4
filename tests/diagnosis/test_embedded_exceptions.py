"""Exceptions of a rank's helper process, embedded in the message of the rank's own exception."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.diagnosis.processes.embedded_exceptions import original
from hangscope.trace.model import Claim, ExceptionFacts, ExitFacts, Frame
from tests.diagnosis.builder import SECOND, START, Job

CHECK = "_verify_param_shape_across_processes"
WORKER = """Caught OSError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/worker.py", line 349, in loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "/home/me/rows.py", line 23, in __getitem__
    raise OSError("shard 4 is cut short")
OSError: shard 4 is cut short
"""
MINE = (
    Frame("_next_data", "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 9),
    Frame("main", "/home/me/train.py", 45),
)


def raised(message: str) -> ExceptionFacts:
    return ExceptionFacts("OSError", message, MINE, START + SECOND, "MainThread", True)


def test_worker_exception_is_reported_with_its_line() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    job.rank(1, exception=raised(WORKER), exit=ExitFacts("exception", code=1), alive=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))
    assert "OSError: shard 4 is cut short (in DataLoader worker process 0)" in found.summary
    assert "rows.py:23 in __getitem__" in found.findings[0].fix
    assert "shared memory" not in found.findings[0].fix  # no worker was killed


def test_killed_worker_leads_to_advice_about_memory() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    error = raised("DataLoader worker (pid 71) is killed by signal: Killed. ")
    job.rank(1, exception=error, exit=ExitFacts("exception", code=1), alive=False)
    assert "shared memory" in diagnose(job.trace()).findings[0].fix


def test_last_of_several_tracebacks_counts() -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 3\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "b.py", line 2, in g\nmy.Error: no such row\n'
    )
    first = original(raised(text))
    assert (first.type_name, first.message) == ("my.Error", "no such row")
    assert first.stack == (Frame("g", "b.py", 2), *MINE)


def test_message_repeated_by_all_ranks_about_one_is_unchanged() -> None:
    text = f"CheckpointException ranks:dict_keys([2])\n{WORKER}"
    assert original(raised(text)) == raised(text)


def test_truncated_message_is_unchanged() -> None:
    for text in ("Traceback (most recent call last):", WORKER[:200], "no traceback at all"):
        assert original(raised(text)) == raised(text)


def test_gloo_abort_for_another_size_does_not_decide_the_culprit() -> None:
    job = Job(3)
    said = "op.preamble.length <= op.nbytes. 4 vs 2. Received data size doesn't match expected size"
    for rank in (0, 2):
        job.rank(rank, exit=ExitFacts("signal", signal=15), alive=False)
    job.rank(1, exit=ExitFacts("signal", signal=6), alive=False)
    without = diagnose(job.trace())
    assert (without.verdict.value, without.culprits) == ("rank_crashed", (1,))
    found = diagnose(job.trace(claims=(Claim("size_mismatch", text=said, certain=False),)))
    assert found.culprits == ()


def test_different_model_on_one_rank_is_named() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    text = "[1]: params[4] in this process with sizes [5] appears not to match sizes of the same "
    error = raised(f"{text}param in process 0.")
    job.rank(1, exception=error, exit=ExitFacts("exception", code=1), alive=False)
    assert "same model on every rank" in diagnose(job.trace()).findings[0].fix


REDUCER = Frame("__init__", "/env/site-packages/torch/nn/parallel/distributed.py", 870)


def models(*sizes: int, first: int = 0) -> tuple[str, tuple[int, ...]]:
    """Every rank from ``first`` on has found that models differ; messages give places."""
    job = Job(first + len(sizes))
    for rank, size in enumerate(sizes):
        other = next(r for r, s in enumerate(sizes) if s != size)
        text = f"Rank {rank} has {size} params, while rank {other} has inconsistent {sizes[other]}"
        message = f"DDP expects same model across all ranks, but {text} params."
        at = START + SECOND + (rank + 1) % len(sizes)
        error = ExceptionFacts("RuntimeError", message, (REDUCER, *MINE), at, "MainThread", True)
        end = ExitFacts("exception", code=1)
        job.rank(first + rank, exception=error, exit=end, alive=False)
    found = diagnose(job.trace())
    return found.verdict.value, found.culprits


def test_unusual_one_of_several_models_is_named() -> None:
    assert models(4, 6, 4) == ("rank_crashed", (1,))
    assert models(4, 4, 4, 2) == ("rank_crashed", (3,))


@pytest.mark.parametrize("first", [1, 4])
def test_models_of_a_smaller_group_are_judged_by_raising_ranks(first: int) -> None:
    assert models(4, 4, 4, 2, first=first) == ("rank_crashed", (first + 3,))
    assert models(4, 6, 4, first=first) == ("rank_crashed", (first + 1,))


def test_both_of_two_different_models_are_named() -> None:
    assert models(4, 6) == ("rank_crashed", (0, 1))


def _compared(count: int, *sizes: str, elsewhere: bool = False) -> Diagnosis:
    """Ranks from 1 on find that a parameter of theirs has other sizes than rank 0's; it waits.

    ``elsewhere``: in what another line has issued.
    """
    job = Job(count, live=True)
    job.all("broadcast", function=CHECK)
    for rank in (0, *range(1 + len(sizes), count)):
        job.op(rank, "broadcast", done=False)
    if elsewhere:
        job.rows = [r for r in job.rows if r["rank"] or not r["completed_ns"]]
        job.rows[-1]["collective_seq"] = 1
    for rank, size in enumerate(sizes, start=1):
        message = (
            f"[{rank}]: params[2] in this process with sizes [{size}] appears not to match "
            "sizes of the same param in process 0."
        )
        error = ExceptionFacts(
            "RuntimeError", message, (REDUCER, *MINE), START + rank, "MainThread"
        )
        job.rank(rank, exception=error, exit=ExitFacts("exception", code=1), alive=False)
    return diagnose(job.trace())


def _sizes(count: int, *sizes: str) -> tuple[str, tuple[int, ...], str]:
    found = _compared(count, *sizes)
    return found.verdict.value, found.culprits, found.confidence.value


def test_comparison_of_models_that_meets_another_line_is_a_skipped_line() -> None:
    (finding,) = _compared(4, "5", "5", "5", elsewhere=True).findings
    assert (finding.verdict.value, finding.culprits) == ("collective_mismatch", (0,))
    assert "at train.py:88 in train" in finding.summary
    assert "run the same lines" in finding.fix
    assert "model on every rank" not in finding.fix


def test_rank_that_differs_from_rank_0_is_wrong_unless_all_differ() -> None:
    assert _sizes(4, "4, 32") == ("rank_crashed", (1,), "certain")
    assert _sizes(4, "4, 32", "4, 32", "4, 32") == ("shape_mismatch", (0,), "likely")


@pytest.mark.parametrize(
    ("count", "sizes"), [(2, ["5"]), (4, ["5", "5"]), (4, ["5", "6", "7"]), (5, ["5", "5", "5"])]
)
def test_tie_between_model_sizes_names_all(count: int, sizes: list[str]) -> None:
    """In the last case, one of the two ranks that raise nothing may have been about to."""
    found = _sizes(count, *sizes)
    assert found[1:] == (tuple(range(count)), "ambiguous")


def test_checkpoint_exception_shows_the_failed_rank_and_reason() -> None:
    text = f"CheckpointException ranks:dict_keys([2])\n{WORKER}"
    assert original(raised(text), 2).message.startswith("shard 4 is cut short")
    assert original(raised(text), 1) == raised(text)


@pytest.mark.parametrize("lost", [False, True])
def test_checkpoint_exception_of_a_smaller_group_uses_group_ranks(lost: bool) -> None:
    """The third of ranks 0, 2, 4 and 6 fails: that is rank 4, and rank 2 repeats it."""
    job = Job(8)
    savers = job.group(0, 2, 4, 6, desc="dp")
    job.steps(4)
    job.all(group=savers)
    text = f"CheckpointException ranks:dict_keys([2])\n{WORKER}"
    for rank in (0, 2, 4, 6):
        end = ExitFacts("exception", code=1)
        job.rank(rank, exception=raised(text), exit=end, alive=False)
    for rank in (1, 3, 5, 7):
        end = ExitFacts("signal", signal=15, by_launcher=True)
        job.rank(rank, exit=end, alive=False)
    if lost:
        job.lose(4)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (4,))
    assert "shard 4 is cut short" in found.summary
