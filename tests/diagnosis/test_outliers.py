"""One operation more, or one fewer: who is the outlier if the graph only shows who waits?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace import formats
from hangscope.trace.load import load_trace
from hangscope.trace.model import ExitFacts, RankFacts, Source
from tests.diagnosis.builder import SECOND, START, Job
from tests.trace.dumps import dump, entry, pending, write

Rows = list[dict[str, Any]]


def judged(
    folder: Path,
    rows: dict[int, Rows],
    groups: dict[str, tuple[str, list[int]]],
    overwritten: int = 0,
) -> Diagnosis:
    """What the dumps of these ranks say; ``groups`` beside the default one by name.

    ``overwritten``: how many of each rank's records are gone.
    """
    everybody = {"0": ("default_pg", sorted(rows)), **groups}
    config = {
        name: {"name": name, "desc": desc, "ranks": str(ranks)}
        for name, (desc, ranks) in everybody.items()
    }
    for rank, entries in rows.items():
        for number, made in enumerate(entries):
            made["record_id"] = number + overwritten
        write(folder, f"trace_{rank}", dump(entries, pg_config=config, pg_status=None))
    return diagnose(load_trace([folder]))


def half(name: str, number: int, *, done: bool, group: tuple[str, str]) -> dict[str, Any]:
    made = entry if done else pending
    return made(0, f"nccl:{name}", process_group=group, pg_id=1, p2p_seq_id=number, is_p2p=True)


PIPE = ("1", "pp")
DEFAULT = {"process_group": ("0", "default_pg"), "pg_id": 0}


def test_rank_that_proceeded_alone_is_odd_wherever_it_waits(tmp_path: Path) -> None:
    """The host runs ahead of its device: rank 1 waits for a stage and, behind that, for all
    ranks."""
    groups = {"1": ("pp", [0, 1]), "2": ("pp", [2, 3])}
    rows: dict[int, Rows] = {r: [entry(1), entry(2)] for r in range(4)}
    rows[1] += [half("recv 1<-0", 1, done=False, group=PIPE), pending(3)]
    found = judged(tmp_path, rows, groups)
    assert (found.verdict, found.culprits) == (Verdict.COLLECTIVE_MISMATCH, (1,))
    assert found.confidence is Confidence.LIKELY


def test_absent_rank_with_more_waiters_is_certain(tmp_path: Path) -> None:
    rows: dict[int, Rows] = {r: [entry(1), pending(2)] for r in range(4)}
    rows[2] = [entry(1)]
    found = judged(tmp_path, rows, {})
    assert (found.culprits, found.confidence) == ((2,), Confidence.CERTAIN)


@pytest.mark.parametrize("wrapped", [False, True])
def test_unreceived_send_may_block_its_sender(tmp_path: Path, wrapped: bool) -> None:
    """Rank 2 is at the barrier without having received; rank 0 sent to it and got no further.
    Overwritten records make neither of them more likely."""
    group = ("0", "default_pg")
    rows: dict[int, Rows] = {
        0: [
            half("send 0->1", 1, done=True, group=group),
            half("send 0->2", 2, done=True, group=group),
            half("send 0->2", 3, done=False, group=group),
        ],
        1: [half("recv 1<-0", 1, done=True, group=group)],
        2: [half("recv 2<-0", 1, done=True, group=group)],
    }
    for rank in (1, 2):
        rows[rank].append(pending(1, "nccl:all_reduce_barrier", **DEFAULT))
    for entries in rows.values():
        for made in entries:
            made["pg_id"] = 0
    found = judged(tmp_path, rows, {}, 500 if wrapped else 0)
    assert (found.culprits, found.confidence) == ((0, 2), Confidence.AMBIGUOUS)
    assert "never received" in found.summary


def test_observed_exit_counts_without_a_ring() -> None:
    """Rank 0 gathers alone, both others have exited; rank 1 is known only from the journal."""
    job = Job(3)
    job.steps(4)
    job.op(0, "all_gather", done=False)
    job.lose(1)
    well = ExitFacts("clean", 0, at_ns=START + int((job.now + 1) * SECOND))
    job.facts[1] = RankFacts(1, alive=False, exit=well)
    job.rank(2, alive=False, exit=well)
    rings = tuple(Source(f"rank_{r}.ring", formats.RING, rank=r) for r in (0, 2))
    found = diagnose(job.trace(sources=(*rings, Source("monitor.journal", formats.JOURNAL))))
    assert (found.culprits, found.confidence) == ((0, 2), Confidence.AMBIGUOUS)
    assert "rank 1 left nothing and may be on either" in found.findings[0].why
