"""Ranks inside the creation of a communicator: no dump shows that they wait, nor for whom."""

from __future__ import annotations

from pathlib import Path

from hangscope.diagnosis.model import Confidence, Diagnosis
from tests.trace.dumps import Entries, entry, judged, pending

TENSOR = {0: ("1", "tp"), 1: ("1", "tp"), 2: ("2", "tp"), 3: ("2", "tp")}
DATA = {0: ("3", "dp"), 2: ("3", "dp"), 1: ("4", "dp"), 3: ("4", "dp")}
MEMBERS = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
PIPE = ("0", "default_pg")


def _diagnose(folder: Path, ranks: dict[int, Entries], groups: dict[str, list[int]]) -> Diagnosis:
    return judged(folder, ranks, {name: ("", members) for name, members in groups.items()})


def _program(rank: int, of: str, *, unfinished: str = "") -> Entries:
    """The rank's collectives, a letter each, ``t`` tensor parallel or ``d`` data parallel."""
    entries: Entries = []
    counts = {"t": 0, "d": 0}
    for index, letter in enumerate(of + unfinished):
        counts[letter] += 1
        group = (TENSOR if letter == "t" else DATA)[rank]
        make = entry if index < len(of) else pending
        entries.append(make(counts[letter], process_group=group, pg_id=int(group[0])))
        entries[-1]["record_id"] = index
    return entries


def _stage(rank: int, *halves: str, unfinished: tuple[str, ...] = ()) -> Entries:
    """Sends and receives like ``<0`` and ``>2``, each pair numbered from 1."""
    entries: Entries = []
    counts: dict[str, int] = {}
    for index, half in enumerate((*halves, *unfinished)):
        peer = half[1:]
        counts[peer] = counts.get(peer, 0) + 1
        name = f"recv {rank}<-{peer}" if half[0] == "<" else f"send {rank}->{peer}"
        make = entry if index < len(halves) else pending
        changes = {"collective_seq_id": 0, "p2p_seq_id": counts[peer], "is_p2p": True}
        entries.append(make(1, f"nccl:{name}", process_group=PIPE, pg_id=0, **changes))
        entries[-1]["record_id"] = index
    return entries


def test_stage_before_a_lost_one_may_be_connecting_to_it(tmp_path: Path) -> None:
    """Stage 2 would send to stage 3 next, for the first time."""
    ranks = {
        0: _stage(0, ">1", unfinished=(">1", "<1", "<1")),
        1: _stage(1, "<0", ">2", "<0", unfinished=(">2", "<2", ">0")),
        2: _stage(2, "<1"),
    }
    found = _diagnose(tmp_path, ranks, {"0": [0, 1, 2, 3]})
    assert found.culprits == (2, 3)
    assert found.confidence is Confidence.AMBIGUOUS
    assert "rank 3 left no record" in found.summary
    assert "creating a communicator" in found.findings[0].why


def test_stage_that_has_met_all_its_partners_is_accused_alone(tmp_path: Path) -> None:
    """Stage 2 has sent to stage 3: what it leaves out needs no new communicator."""
    ranks = {
        0: _stage(0, ">1", ">1", unfinished=(">1", "<1", "<1")),
        1: _stage(1, "<0", ">2", "<0", unfinished=(">2", "<2", ">0")),
        2: _stage(2, "<1", ">3"),
    }
    found = _diagnose(tmp_path, ranks, {"0": [0, 1, 2, 3]})
    assert (found.verdict.value, found.culprits) == ("p2p_unmatched", (2,))


def test_of_two_idle_counterparts_either_may_wait_for_the_other(tmp_path: Path) -> None:
    """Ranks 1 and 3 would meet in their data parallel group next."""
    ranks = {
        0: _program(0, "ttd", unfinished="t"),
        1: _program(1, "tt"),
        2: _program(2, "ttd", unfinished="t"),
        3: _program(3, "tt"),
    }
    found = _diagnose(tmp_path, ranks, MEMBERS)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1, 3))
    assert found.confidence is Confidence.AMBIGUOUS


def test_lost_rank_may_have_been_about_to_meet_an_idle_one(tmp_path: Path) -> None:
    """Ranks 0 and 2 have a data parallel group like that of ranks 1 and 3, used just before."""
    ranks = {
        0: _program(0, "tt"),
        1: _program(1, "ttd", unfinished="t"),
        3: _program(3, "ttd", unfinished="t"),
    }
    found = _diagnose(tmp_path, ranks, MEMBERS)
    assert found.culprits == (0, 2)
    assert found.confidence is Confidence.AMBIGUOUS


def test_new_communicator_may_come_late_in_the_first_step(tmp_path: Path) -> None:
    """As in HSDP: many operations among shards, then the first one among replicas."""
    forward = "t" * 9
    ranks = {
        0: _program(0, forward),
        1: _program(1, forward + "d", unfinished="t"),
        3: _program(3, forward + "d", unfinished="t"),
    }
    found = _diagnose(tmp_path, ranks, MEMBERS)
    assert found.culprits == (0, 2)
    assert found.confidence is Confidence.AMBIGUOUS


def test_lost_rank_is_accused_alone_after_steps_without_anything_new(tmp_path: Path) -> None:
    steps = 3
    ranks = {
        0: _program(0, "t" * steps),
        1: _program(1, "t" * steps),
        3: _program(3, "t" * (steps - 1), unfinished="t"),
    }
    found = _diagnose(tmp_path, ranks, MEMBERS)
    assert (found.verdict.value, found.culprits) == ("rank_lost", (2,))


def test_ranks_with_many_steps_behind_them_meet_nobody_new(tmp_path: Path) -> None:
    ranks = {
        0: _program(0, "td" * 4, unfinished="t"),
        1: _program(1, "td" * 4),
        2: _program(2, "td" * 4, unfinished="t"),
    }
    found = _diagnose(tmp_path, ranks, MEMBERS)
    assert found.culprits[:1] == (1,)
    assert "communicator" not in found.summary


def test_nobody_is_named_if_that_were_most_of_the_job(tmp_path: Path) -> None:
    ranks = {0: _stage(0, ">1", unfinished=(">1", "<1")), 1: _stage(1, "<0")}
    found = _diagnose(tmp_path, ranks, {"0": list(range(6))})
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert any("create a communicator" in unknown for unknown in found.findings[0].unknowns)
