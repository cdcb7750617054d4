"""One operation more, or one fewer: who is the outlier if the graph only shows who waits?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace import formats
from hangscope.trace.model import ExitFacts, RankFacts, Source
from tests.diagnosis.builder import SECOND, START, Job
from tests.trace import dumps
from tests.trace.dumps import entry, pending

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
    for entries in rows.values():
        for number, made in enumerate(entries):
            made["record_id"] = number + overwritten
    return dumps.judged(folder, rows, {"0": ("default_pg", sorted(rows)), **groups})


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


@pytest.mark.parametrize("size", [4, 2])
def test_pair_without_more_progress_in_its_sibling_is_ambiguous(tmp_path: Path, size: int) -> None:
    """No other rank waits: rank 0 may have issued one more. Without others rank 1 is likely."""
    tensor = {"1": ("tp", [0, 1]), "2": ("tp", [2, 3])}
    rows: dict[int, Rows] = {}
    for rank in range(size):
        own = {"process_group": (str(1 + rank // 2), "tp"), "pg_id": 1}
        rows[rank] = [entry(1), entry(1, **own), entry(2, **own)]
        rows[rank] += [pending(3, **own)] if rank == 0 else []
    groups = {name: g for name, g in tensor.items() if g[1][0] < size}
    found = judged(tmp_path, rows, groups)
    if size == 4:
        assert (found.culprits, found.confidence) == ((0, 1), Confidence.AMBIGUOUS)
    else:
        assert (found.culprits, found.confidence) == ((1,), Confidence.LIKELY)


def test_absent_rank_with_more_waiters_is_certain(tmp_path: Path) -> None:
    rows: dict[int, Rows] = {r: [entry(1), pending(2)] for r in range(4)}
    rows[2] = [entry(1)]
    found = judged(tmp_path, rows, {})
    assert (found.culprits, found.confidence) == ((2,), Confidence.CERTAIN)


def test_partner_of_a_rank_that_begins_another_round_alone_is_not_named(tmp_path: Path) -> None:
    """Rank 1 pushes and pulls a third time; the server and rank 2 are at the barrier."""
    group = ("0", "default_pg")
    rows: dict[int, Rows] = {0: [], 1: [], 2: []}
    for turn in range(2):
        for rank in (1, 2):
            at = 2 * turn + 1
            rows[0].append(half(f"recv 0<-{rank}", 4 * turn + rank, done=True, group=group))
            rows[rank].append(half(f"send {rank}->0", at, done=True, group=group))
            rows[rank].append(half(f"recv {rank}<-0", at + 1, done=True, group=group))
        for rank in (1, 2):
            rows[0].append(half(f"send 0->{rank}", 4 * turn + 2 + rank, done=True, group=group))
    rows[1].append(half("send 1->0", 5, done=False, group=group))
    rows[1].append(half("recv 1<-0", 6, done=False, group=group))
    for rank in (0, 2):
        rows[rank].append(pending(1, "nccl:all_reduce_barrier", **DEFAULT))
    for entries in rows.values():
        for made in entries:
            made["pg_id"] = 0
    found = judged(tmp_path, rows, {})
    assert (found.culprits, found.confidence) == ((0, 1), Confidence.AMBIGUOUS)


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


def test_rank_that_others_speak_against_is_named_not_the_one_it_waits_for(tmp_path: Path) -> None:
    """Rank 1 alone began another round: whom it waits for did as all others."""
    groups = {"1": ("tp", [0, 1]), "2": ("tp", [2, 3]), "3": ("dp", [0, 2]), "4": ("dp", [1, 3])}
    rows: dict[int, Rows] = {}
    for rank in range(4):
        tensor = {"process_group": (str(1 + rank // 2), "tp"), "pg_id": 1}
        data = {"process_group": (str(3 + rank % 2), "dp"), "pg_id": 2}
        rows[rank] = [entry(1, **tensor), entry(1, **data), entry(2, **tensor)]
        rows[rank] += [pending(3, **tensor)] if rank == 1 else []
        rows[rank] += [pending(2, **data) if rank % 2 else entry(2, **data)]
    found = judged(tmp_path, rows, groups)
    assert (found.culprits, found.confidence) == ((1,), Confidence.LIKELY)
