"""Verdicts do not depend on ranks' numbers, groups' names, clocks, formats and old history."""

from __future__ import annotations

import random

import pytest

from tools.simulator.case import Case
from tools.simulator.dialects import DIALECTS, nanoseconds
from tools.simulator.faults import draw
from tools.simulator.invariance import changes, kind_of
from tools.simulator.native_dumps import native
from tools.simulator.transformations import TRANSFORMATIONS, Dumps, entries, other_ranks


def dumps_of(case: Case, dialect: str = "pickle 2.10") -> Dumps:
    ranks = range(case.run.job.world)
    return Dumps(
        {rank: native(case, rank, DIALECTS[dialect]) for rank in ranks},
        {rank: nanoseconds(case.at[rank]) for rank in ranks},
        tuple(ranks),
        as_json=False,
    )


@pytest.mark.slow
def test_no_transformation_makes_an_answer_wrong() -> None:
    found = [change for case in changes(8, 20) for change in case]
    assert {change.transformation for change in found} == {t.__name__ for t in TRANSFORMATIONS}
    assert [change for change in found if kind_of(change) == "wrong"] == []
    same = sum(change.outcome == change.before for change in found)
    assert same >= 0.9 * len(found), "hardly any answer is less decided"


def test_renumbered_ranks_keep_their_partners() -> None:
    """Sender and receiver of every pair have new numbers, but still belong together."""
    dumps = dumps_of(draw(1, 3, "p2p_unmatched", "tensor x pipeline x data"))
    changed = other_ranks(dumps, random.Random(1))
    assert changed is not None
    assert sorted(changed.new_rank) == list(range(len(dumps.new_rank)))
    assert changed.new_rank != dumps.new_rank
    assert pairs_of(changed) == {
        tuple(changed.new_rank[rank] for rank in pair) for pair in pairs_of(dumps)
    }


def pairs_of(dumps: Dumps) -> set[tuple[int, ...]]:
    """(issuing rank, partner) of all sends and receives, as ranks of the job."""
    pairs = set()
    for rank, document in dumps.of_rank.items():
        assert isinstance(document, dict)
        for entry in entries(document):
            name, places = (
                entry["profiling_name"].rsplit(" ", 1)[0],
                entry["profiling_name"].split(),
            )
            if name.endswith(("send", "recv")) and len(places) > 1:
                members = [
                    int(r)
                    for r in document["pg_config"][entry["process_group"][0]]["ranks"]
                    .strip("[]")
                    .split(",")
                ]
                own, peer = places[1].replace("<-", "->").split("->")
                assert members[int(own)] == rank
                pairs.add((rank, members[int(peer)]))
    return pairs
