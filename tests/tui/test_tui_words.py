"""The texts on the screen: complete at 80 columns, and clear if there is nothing to show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.tui.details import describe
from hangscope.tui.snapshot import take
from hangscope.tui.trees import WaitTree
from hangscope.tui.verdict import lines
from tests import view_samples as samples
from tests.diagnosis.builder import Job


def printed(summary: str, width: int) -> list[str]:
    diagnosis = replace(samples.hang().diagnosis, summary=summary)
    console = Console(width=width, record=True, file=None, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(lines(diagnosis, width=width))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_long_sentence_takes_a_second_line() -> None:
    long = "At #17 of group default rank 1 issued float32[12] while ranks 0, 2, 3 issued float32[8]"
    assert len(printed(long, 120)) == 3
    narrow = printed(long, 78)
    assert len(narrow) == 4
    assert " ".join(narrow[1:3]) == long
    cut = printed(long * 4, 78)
    assert len(cut) == 4
    assert cut[2].endswith("…")


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict.STUCK_COLLECTIVE, "all of them are in the operation that does not end"),
        (Verdict.SHAPE_MISMATCH, "with what cannot go together"),
        (Verdict.RANK_LOST, "on record"),
    ],
)
def test_lack_of_waiting_between_ranks_is_explained(verdict: Verdict, words: str) -> None:
    job = samples.hang()
    finding = replace(job.diagnosis.findings[0], verdict=verdict)
    diagnosis = replace(job.diagnosis, verdict=verdict, findings=(finding,), wait_for=())
    assert words in WaitTree().nothing(take(job.trace, diagnosis))


def test_healthy_job_waits_for_nothing() -> None:
    job = samples.healthy()
    assert WaitTree().nothing(take(job.trace, job.diagnosis)) == "nobody waits on anybody"


@pytest.mark.parametrize(("tag", "shown"), [(0, ""), (7, "tag 7")])
def test_pair_has_a_tag_and_no_root(tag: int, shown: str) -> None:
    job = Job(2)
    for rank, op in enumerate(("send", "recv")):
        job.op(rank, op, peer=1 - rank, root=tag)
    trace = job.trace()
    console = Console(width=100)
    with console.capture() as captured:
        console.print(*describe(take(trace, diagnose(trace)), 1, 1))
    text = captured.get()
    assert "peer 0" in text
    assert shown in text
    assert "root" not in text
