"""What NCCL told on several nodes that share no directory, put together from their digests."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.ring.device_reader import read_device_ring
from hangscope.trace.digests.codec import decode, encode
from hangscope.trace.digests.digest import Node, fragments_of
from hangscope.trace.digests.make import digest_of
from hangscope.trace.digests.tables import Tables
from hangscope.trace.load import load_trace
from hangscope.trace.merging.merge import merge
from hangscope.trace.model import Fragment, Trace
from hangscope.trace.nccl.communicators import joined_communicators
from hangscope.trace.nccl.rings import noted_in

FIXTURE = Path(__file__).parents[2] / "fixtures" / "nccl-two-nodes-replay" / "dumps"


def seen_by_node(ranks: tuple[int, ...], folder: Path) -> Trace:
    """What a node that runs these ranks alone has seen."""
    folder.mkdir()
    for rank in ranks:
        for file in FIXTURE.rglob(f"rank_{rank}.*"):
            shutil.copy(file, folder)
    return load_trace([folder])


def sent(trace: Trace) -> list[Fragment]:
    """What arrives of it on another node."""
    node = Node("node", ranks=tuple(trace.ranks))
    return [*fragments_of(decode(encode(digest_of(trace, trace.ranks, node)), Tables()))]


@pytest.fixture
def nodes(tmp_path: Path) -> list[Trace]:
    """Two nodes with two ranks each; rank 3 waits before it replays a graph."""
    return [seen_by_node((0, 1), tmp_path / "a"), seen_by_node((2, 3), tmp_path / "b")]


def test_a_replay_that_one_node_lacks_is_missing_in_the_job(nodes: list[Trace]) -> None:
    whole = joined_communicators(merge([*sent(nodes[0]), *sent(nodes[1])]))
    found = diagnose(replace(whole, timeout_s=1.0))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (3,))
    assert "replayed by CUDA graphs (ranks 0–3)" in found.summary


def test_one_node_alone_accuses_nobody_for_a_communicator_it_knows_in_part(
    nodes: list[Trace],
) -> None:
    assert any(group.is_side for group in nodes[1].groups)
    found = diagnose(nodes[1])
    assert not found.culprits
    assert found.findings[0].victims == (2,), "its device waits, for whomever"


def test_a_digest_is_no_older_than_what_torch_recorded(nodes: list[Trace]) -> None:
    """NCCL's own records have no number: they must not make a cut history look whole."""
    for trace in nodes:
        for fragment in sent(trace):
            own = fragment.records["record_id"][fragment.records["record_id"] > 0]
            kept = len(own) < (trace.records["rank"] == fragment.facts.rank).sum()
            assert fragment.facts.oldest_record_id > 1 or not kept or own[0] == 1


def test_replays_are_progress_at_the_cost_of_one_read() -> None:
    """A job of replays alone moves, although no rank records anything."""
    ring = FIXTURE / "rank_0.ring"
    told = read_device_ring(FIXTURE / "rank_0.device").operations["id"]
    assert noted_in(str(ring)) == int(told.max()) > 70
    assert noted_in(str(FIXTURE / "rank_9.ring")) == 0
