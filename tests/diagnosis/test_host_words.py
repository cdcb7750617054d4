"""What the hosts explain of a job that is analysed afterwards: missing files, links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.monitor.journal import Journal
from hangscope.report.json import to_json
from hangscope.ring.run_secret import RunSecret
from hangscope.trace.digests.hosts import Host, HostMap
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.live.open_ring import RunKey
from hangscope.trace.load import load_trace
from hangscope.trace.model import Claim, ClaimDetails, Trace
from hangscope.trace.verdict_codec import OWN_VERDICT
from tests.live_rings import RingRank


def _job(folder: Path, ranks: range, pairs: list[tuple[int, ...]]) -> Trace:
    """Two ranks a host; all members of these groups are in an operation that does not end."""
    for rank in ranks:
        one = RingRank(folder, rank, 8, timeout_s=1.0)
        world = one.join("0", "default_pg", range(8))
        one.finish(one.issue(world))
        for number, members in enumerate(pairs):
            if rank in members:
                one.issue(one.join(f"{number + 1}", f"group {number}", members))
        one.ring.beat()
    found = LiveRun(folder).look()
    later_ns = found.observed_ns + 60 * 10**9
    facts = {
        r: replace(f, host=f"node{r // 2}", machine=f"m{r // 2}", pid=10 + r, observed_ns=later_ns)
        for r, f in found.ranks.items()
    }
    return replace(found, ranks=facts, observed_ns=later_ns, live=True)


def test_groups_that_all_cross_one_pair_of_hosts(tmp_path: Path) -> None:
    found = diagnose(_job(tmp_path, range(8), [(0, 2, 4), (1, 3, 6)]))
    assert found.verdict is Verdict.STUCK_COLLECTIVE
    assert found.hosts == ("node0", "node1")
    assert any("groups that stand have members on node0 and node1" in e
               for e in found.findings[0].evidence)  # fmt: skip


def test_groups_without_a_common_host_name_none(tmp_path: Path) -> None:
    assert diagnose(_job(tmp_path, range(8), [(0, 2), (4, 6)])).hosts == ()


def _unreachable(confidence: str, *hosts: str, verdict: str = "inconclusive") -> Claim:
    details = ClaimDetails(verdict=verdict, confidence=confidence, hosts=hosts)
    return Claim(OWN_VERDICT, text=f"Not reached: {hosts}", at_ns=1 << 62, details=details)


@pytest.mark.parametrize(
    ("claims", "hosts"),
    [
        ([("ambiguous", "node0", "node1"), ("ambiguous", "node0", "node2")], ("node0",)),
        ([("ambiguous", "node0", "node1")], ("node0", "node1")),
        ([("certain", "node1"), ("ambiguous", "node0", "node2")], ("node1",)),
        ([("ambiguous", "node0", "node1"), ("ambiguous", "node2", "node3")], ()),
        ([], ()),
    ],
)
def test_what_the_monitors_could_not_reach(
    tmp_path: Path, claims: list[tuple[str, ...]], hosts: tuple[str, ...]
) -> None:
    """A monitor that cannot reach a host may itself be cut off; several together know more."""
    trace = _job(tmp_path, range(8), [tuple(range(8))])
    found = diagnose(replace(trace, claims=tuple(_unreachable(*claim) for claim in claims)))
    assert (found.verdict, found.hosts) == (Verdict.STUCK_COLLECTIVE, hosts)
    assert found.headline.endswith(
        ["finishes", "from " + "".join(hosts[:1]), "between node0 and node1"][len(hosts)]
    )
    assert (found.findings[0].hosts_silent, found.culprits) == (len(hosts) == 1, ())


def test_missing_files_are_listed_by_host(tmp_path: Path) -> None:
    _job(tmp_path, range(6), [(0, 2)])
    hosts = HostMap(tuple(Host(f"node{n}", (2 * n, 2 * n + 1), (), n) for n in range(4)))
    Journal(tmp_path, RunKey("live", 0), RunSecret()).hosts(hosts)
    found = diagnose(load_trace([tmp_path]))
    assert found.missing == (("node3", (6, 7)),)
    assert orjson.loads(to_json(found, brief=True))["missing"] == [
        {"host": "node3", "ranks": [6, 7]}
    ]
