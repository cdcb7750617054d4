"""What one host explains is said of the host; nobody innocent is named for it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from hangscope.diagnosis.model import Diagnosis, Verdict
from hangscope.monitor.host_evidence import HostEvidence, doubtful_hosts, judged_by_host
from hangscope.monitor.node_reports import Lost
from hangscope.monitor.partial_view import unexplained_end
from hangscope.report.json import to_dict
from hangscope.trace.digests.hosts import Host, HostMap, hosts_s
from hangscope.trace.facts import ExceptionFacts
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.model import RankFacts, Trace
from tests.live_rings import RingRank
from tests.monitor.test_report_policy import diagnosis

HOSTS = HostMap(
    tuple(
        Host(f"node{n}", (2 * n, 2 * n + 1), (f"10.0.0.{n + 1}", f"fd00::{n + 1}"), n)
        for n in range(4)
    )
)
GLOO = (
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer "
    "[10.0.0.{}]:52110"
)


def trace_of(
    ranks: range, tmp_path: Path, broken: dict[int, tuple[str, int]] | None = None
) -> Trace:
    """A look at these ranks of eight, of which some lost a connection."""
    tmp_path.mkdir(exist_ok=True)
    for rank in ranks:
        RingRank(tmp_path, rank, 8).join("0", "default_pg", range(8))
    trace = LiveRun(tmp_path).look()
    facts = dict(trace.ranks)
    for rank, (text, at_ns) in (broken or {}).items():
        error = ExceptionFacts("builtins.RuntimeError", text, at_ns=at_ns)
        facts[rank] = RankFacts(rank, exception=error)
    return replace(trace, ranks=facts)


def all_stuck(world: int) -> Diagnosis:
    """All ranks are in an operation that none finishes."""
    given = diagnosis(Verdict.STUCK_COLLECTIVE)
    all_wait = replace(given.findings[0], culprits=(), victims=tuple(range(world)))
    return replace(given, culprits=(), findings=(all_wait,))


def known(here: range, **more: object) -> HostEvidence:
    return HostEvidence(HOSTS, here=frozenset(here), **more)  # type: ignore[arg-type]


def judged(given: Diagnosis, trace: Trace, evidence: HostEvidence) -> Diagnosis:
    return judged_by_host(given, trace, evidence)


def test_silent_host_is_one_cause(tmp_path: Path) -> None:
    trace = trace_of(range(6), tmp_path)
    found = judged(
        diagnosis(Verdict.RANK_LOST, 6, 7), trace, known(range(2), silent=HOSTS.hosts[3:])
    )
    assert found.verdict is Verdict.RANK_LOST
    assert found.headline == "Host node3 (ranks 6, 7) fell silent"
    assert found.culprits == (6, 7)
    document = to_dict(found)
    assert document["hosts"] == ["node3"]
    assert document["findings"][0]["hosts"] == ["node3"]


def test_host_is_not_blamed_for_ranks_elsewhere(tmp_path: Path) -> None:
    trace = trace_of(range(4), tmp_path)
    given = diagnosis(Verdict.RANK_LOST, 4, 6, 7)
    assert judged(given, trace, known(range(2), silent=HOSTS.hosts[3:])).hosts != ("node3",)


def test_culprit_that_is_seen_stays_the_culprit(tmp_path: Path) -> None:
    trace = trace_of(range(6), tmp_path)
    given = diagnosis(Verdict.MISSING_RANK, 3)
    found = judged(given, trace, known(range(2), silent=HOSTS.hosts[3:]))
    assert (found.verdict, found.culprits, found.hosts) == (given.verdict, (3,), ("node1",))


@pytest.mark.parametrize("address", [2, 3])
def test_connections_closed_by_one_host(tmp_path: Path, address: int) -> None:
    text = GLOO.format(address)
    broken = {0: (text, 10**18), 1: (text, 10**18 + 10**9)}
    trace = trace_of(range(2), tmp_path, broken)
    found = judged(diagnosis(Verdict.RANK_CRASHED, 0, 1), trace, known(range(2)))
    name, first = f"node{address - 1}", 2 * address - 2
    where = f"host {name} (ranks {first}, {first + 1})"
    assert found.summary == f"The first connections of ranks 0, 1 that broke led to {where}"
    assert found.verdict is Verdict.INCONCLUSIVE, "that host may have lost another one before"
    assert not found.culprits
    assert "10.0.0." in found.findings[0].why


@pytest.mark.parametrize("second", [1, 3, 4])
def test_connections_that_broke_at_once(tmp_path: Path, second: int) -> None:
    broken = {0: (GLOO.format(second), 10**18 + 10**8), 1: (GLOO.format(2), 10**18)}
    trace = trace_of(range(2), tmp_path, broken)
    found = judged(diagnosis(Verdict.RANK_CRASHED, 0, 1), trace, known(range(2)))
    both = {
        1: "host node1 (ranks 2, 3)",  # a rank here that lost it ended its own connections, too
        3: "host node1 (ranks 2, 3), the next to host node2 (ranks 4, 5)",
        4: "host node1 (ranks 2, 3), the next to host node3 (ranks 6, 7)",
    }[second]
    assert found.summary == f"The first connections of ranks 0, 1 that broke led to {both}"
    assert found.verdict is Verdict.INCONCLUSIVE
    assert not found.culprits


def test_connections_closed_by_many_hosts_at_once_name_none(tmp_path: Path) -> None:
    text = " ".join(map(GLOO.format, (2, 3, 4)))
    trace = trace_of(range(2), tmp_path, {0: (text, 10**18)})
    given = diagnosis(Verdict.RANK_CRASHED, 0, 1)
    assert "node" not in judged(given, trace, known(range(2))).summary


def test_connections_that_broke_later_do_not_count(tmp_path: Path) -> None:
    broken = {0: (GLOO.format(2), 10**18), 1: (GLOO.format(3), 10**18 + 60 * 10**9)}
    trace = trace_of(range(2), tmp_path, broken)
    found = judged(diagnosis(Verdict.RANK_CRASHED, 0, 1), trace, known(range(2)))
    assert found.summary.endswith("led to host node1 (ranks 2, 3)")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("Connection reset by peer", "has closed the job's store"),
        ("failed to recv, got 0 bytes", "has closed the job's store"),
        ("wait timeout after 10000ms", "this host is cut off"),
    ],
)
def test_store_that_is_gone_names_its_host(tmp_path: Path, error: str, says: str) -> None:
    trace = trace_of(range(2, 4), tmp_path)
    store = Lost(time.time_ns() - 12 * 10**9, error)
    found = judged(diagnosis(Verdict.RANK_LOST, 0, 1, 4), trace, known(range(2, 4), store=store))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert says in found.summary
    assert not found.culprits, "this host may be the one that is cut off"
    assert found.hosts == ("node0",)
    assert "node0 (ranks 0, 1)" in found.headline
    assert "12 s" in found.findings[0].why
    evidence = known(range(2, 4), store=store)
    assert doubtful_hosts(found, evidence) == ("node0", "node1"), "or this one is cut off"
    line = unexplained_end(diagnosis(Verdict.INCONCLUSIVE), "/run", known(range(2, 4), store=store))
    assert "host node0 (ranks 0, 1), which holds the job's store, does not answer" in line


def test_hosts_travel_and_are_named_shortly() -> None:
    assert HostMap.decode(HOSTS.encode()) == HOSTS
    assert HOSTS.at("fd00::3") == HOSTS.hosts[2]
    assert HOSTS.at("10.0.0.9") is None
    assert hosts_s(HOSTS.hosts[:2]) == "hosts node0 (ranks 0, 1), node1 (ranks 2, 3)"
    for damaged in (
        b"{}",
        b"[[1]]",
        b'[["a",[[0,1,999999999]],[],0]]',
        b'[["a",[],["x",3],0]]',
        b"x",
    ):
        with pytest.raises(ValueError):
            HostMap.decode(damaged)


def test_ranks_that_have_all_come_and_a_host_that_does_not_answer(tmp_path: Path) -> None:
    """A shared directory shows ranks whose link is cut."""
    trace = trace_of(range(8), tmp_path)
    stuck = all_stuck(8)
    found = judged(stuck, trace, known(range(2), silent=HOSTS.hosts[3:]))
    assert found.verdict is Verdict.STUCK_COLLECTIVE
    assert found.summary == "Nothing comes through the network from host node3 (ranks 6, 7)"
    assert (found.hosts, found.culprits) == (("node3",), ())
    others_wait = replace(stuck.findings[0], victims=(2, 3))
    elsewhere = replace(stuck, findings=(others_wait,))
    assert judged(elsewhere, trace, known(range(2), silent=HOSTS.hosts[3:])).hosts == ()


@pytest.mark.parametrize("hosts", [4, 2])
def test_host_that_hears_nobody_is_the_one_that_is_cut_off(tmp_path: Path, hosts: int) -> None:
    """With one other host, nothing tells which of the two it is."""
    there = HostMap(HOSTS.hosts[:hosts])
    alone = HostEvidence(there, silent=there.hosts[1:], here=frozenset({0, 1}))
    shared = trace_of(range(2 * hosts), tmp_path / "shared")
    found = judged(all_stuck(2 * hosts), shared, alone)
    assert found.summary == "Nothing comes to host node0 (ranks 0, 1) from any other host"
    own = trace_of(range(2), tmp_path / "own")
    found = judged(diagnosis(Verdict.RANK_LOST, 2, 3), own, alone)
    assert found.summary == "Nothing comes to host node0 (ranks 0, 1) from any other host"
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())
    assert found.hosts == (("node0",) if hosts > 2 else ())
    given = diagnosis(Verdict.MISSING_RANK, 1)
    assert judged(given, own, alone).culprits == (1,), "a rank here that is seen to be missing"


def test_rank_that_was_not_heard_of_since_connections_broke_is_not_accused(tmp_path: Path) -> None:
    """Its ring is in a shared directory, and its host may be gone."""
    broken = {0: (GLOO.format(2), 10**18), 1: (GLOO.format(2), 10**18)}
    trace = trace_of(range(4), tmp_path, broken)
    given = diagnosis(Verdict.MISSING_RANK, 2, 3)
    for beat_ns, accused in ((10**18 - 10**9, False), (10**18 + 2 * 10**9, True)):
        ranks = {r: replace(f, heartbeat_ns=beat_ns) for r, f in trace.ranks.items()}
        found = judged(given, replace(trace, ranks=ranks), known(range(2)))
        assert (found.culprits == (2, 3)) is accused
        assert found.summary.endswith("led to host node1 (ranks 2, 3)") is not accused


def test_store_that_is_gone_as_well_is_named_beside_the_first_connections(tmp_path: Path) -> None:
    trace = trace_of(range(2, 4), tmp_path, {2: (GLOO.format(3), 10**18)})
    store = Lost(time.time_ns(), "Connection reset by peer")
    found = judged(diagnosis(Verdict.RANK_LOST, 4), trace, known(range(2, 4), store=store))
    assert found.summary.endswith(
        "led to host node2 (ranks 4, 5), and host node0 (ranks 0, 1), which holds the job's store, "
        "does not answer"
    )
