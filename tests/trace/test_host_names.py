"""Machines that share a host name, with the same pids: containers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hangscope.replay.compact import compact_ring
from hangscope.ring.process_identity import machine_id
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.load import load_trace
from hangscope.trace.model import Trace
from tests.live_rings import RingRank

NAMESPACE = 4026531836
"""Of the first process of every machine: it tells none apart."""


def container(folder: Path, node: int, *, boot: str) -> Path:
    """Two ranks with the same process ids in each; the second has been killed on node 1."""
    place = folder / f"node{node}"
    place.mkdir(exist_ok=True)
    for local in range(2):
        rank = RingRank(
            place, 2 * node + local, 6, pid=12 + local, boot_id=boot, pid_namespace=NAMESPACE
        )
        rank.join("0", "default_pg", range(6))
        rank.ring.put_u4("node_rank", node)
        rank.ring.beat()
    signal = 9 if node == 1 else 15
    head = {"hangscope": "journal/1", "run_id": "live", "attempt": 0, "host": "node0",
            "machine": machine_id(boot, NAMESPACE), "started_ns": 1}  # fmt: skip
    end = {"event": "exit", "rank": 2 * node + 1, "pid": 13, "at_ns": 2, "signal": signal}
    lines = [json.dumps(line, separators=(",", ":")) + "\n" for line in (head, end)]
    (place / "monitor.journal").write_text("".join(lines))
    return place


def signals(trace: Trace) -> dict[int, int | None]:
    return {rank: facts.exit and facts.exit.signal for rank, facts in trace.ranks.items()}


@pytest.mark.parametrize("copied", [False, True])
def test_exit_belongs_to_a_process_of_the_same_host(tmp_path: Path, copied: bool) -> None:
    places = [container(tmp_path, node, boot=f"boot-{node}") for node in range(3)]
    for ring in tmp_path.glob("*/*.ring") if copied else ():
        compact_ring(ring, ring.with_suffix(".small"))
        ring.with_suffix(".small").replace(ring)
    trace = load_trace(places)
    assert signals(trace) == {0: None, 1: 15, 2: None, 3: 9, 4: None, 5: 15}
    hosts = [trace.ranks[rank].host for rank in range(6)]
    assert hosts == [f"node0 (node {rank // 2})" for rank in range(6)]


def test_hosts_are_compared_in_one_directory_and_while_following(tmp_path: Path) -> None:
    for node in range(3):
        place = container(tmp_path, node, boot=f"boot-{node}")
        for path in place.iterdir():
            path.rename(tmp_path / f"{node}-{path.name}" if path.suffix == ".journal"
                        else tmp_path / path.name)  # fmt: skip
    run = LiveRun(tmp_path)
    for _ in range(2):
        trace = run.look()
        assert signals(trace) == {0: None, 1: 15, 2: None, 3: 9, 4: None, 5: 15}
        assert trace.ranks[4].host == "node0 (node 2)"


def test_one_host_keeps_its_name(tmp_path: Path) -> None:
    trace = load_trace([container(tmp_path, node, boot="boot") for node in range(2)])
    assert {facts.host for facts in trace.ranks.values()} == {"node0"}
