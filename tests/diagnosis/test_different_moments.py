"""A rank's dump, stack and failure may be of different moments, and contradict each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.load import load_trace
from tests.trace.dumps import dump, entry, pending, write

HISTORY = [entry(seq) for seq in range(1, 8)]
IN_A_COLLECTIVE = (("all_reduce", "torch/distributed/distributed_c10d.py"), ("step", "/job/t.py"))
IN_A_LOADER = (("fetch", "/job/shards.py"), ("step", "/job/t.py"))
FAILED = (
    "[rank{r}]: Traceback (most recent call last):\n"
    '[rank{r}]:   File "/job/t.py", line 31, in step\n'
    "[rank{r}]: ValueError: odd label\n"
)


def stack(frames: tuple[tuple[str, str], ...]) -> str:
    shown = "".join(f"    {name} ({file}:5)\n" for name, file in frames)
    return f'Process 71: python t.py\nPython v3.11.9\n\nThread 71 (idle): "MainThread"\n{shown}'


def judged(folder: Path, **texts: str) -> Diagnosis:
    """Ranks 0, 1 and 3 wait at #8 in their dumps; that of rank 2 has nothing unfinished."""
    for rank in range(4):
        entries = HISTORY if rank == 2 else [*HISTORY, pending(8)]
        write(folder, f"nccl_trace_rank_{rank}", dump(entries, world=4))
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return diagnose(load_trace([folder]))


def test_a_stack_inside_a_collective_contradicts_a_dump_without_it(tmp_path: Path) -> None:
    found = judged(tmp_path, stack_rank_2__txt=stack(IN_A_COLLECTIVE))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == "likely"
    assert any(
        "its stack shows it waiting for other ranks" in u for u in found.findings[0].unknowns
    )


@pytest.mark.parametrize("rank", [0, 2])
def test_a_stack_that_fits_the_dumps_changes_nothing(tmp_path: Path, rank: int) -> None:
    frames = IN_A_LOADER if rank == 2 else IN_A_COLLECTIVE
    found = judged(tmp_path, **{f"stack_rank_{rank}__txt": stack(frames)})
    assert (found.culprits, found.confidence.value) == ((2,), "certain")


def test_rank_that_failed_after_its_dump_is_not_certainly_the_cause(tmp_path: Path) -> None:
    found = judged(tmp_path, job__log=FAILED.format(r=1))
    assert found.confidence.value == "ambiguous"
    assert found.culprits == (1,)
    assert any("because of rank 2 before that" in text for text in found.findings[0].unknowns)


def test_failure_of_the_awaited_rank_is_the_cause(tmp_path: Path) -> None:
    found = judged(tmp_path, job__log=FAILED.format(r=2))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
