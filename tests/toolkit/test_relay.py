"""Nodes meet in the job's store: each attempt separately, whatever the nodes are called."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore

from hangscope.ring.run_secret import SEAL_CHARACTERS, RunSecret
from hangscope.toolkit.launching import letters, tree
from hangscope.toolkit.launching import relay as relay_process
from hangscope.toolkit.launching.messages import Report
from hangscope.toolkit.launching.relay import PREFIX, Relay
from hangscope.toolkit.launching.tree import FirstNode, OtherNode
from hangscope.trace.digests.codec import decode, encode
from hangscope.trace.digests.digest import Digest, Node
from hangscope.trace.digests.tables import Tables

_TICKS = itertools.count(1)


def digest(name: str) -> bytes:
    return encode(Digest((Node(name, ranks=(3,)),), (), Tables(), 8.0))


def names(raw: bytes) -> list[str]:
    return [node.host for node in decode(raw, Tables()).nodes]


def says(node: tree.Member, name: str) -> None:
    node.report = Report(time.time_ns() + next(_TICKS), digest(name))
    node.round()


def heard_by(first: FirstNode) -> list[str]:
    first.round()
    return sorted(name for raw in first.inbox.digests.values() for name in names(raw))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ANNOUNCE_AGAIN_S", 0.0)
    monkeypatch.setattr(tree, "COMBINE_AGAIN_S", 0.0)


@pytest.fixture
def store() -> HashStore:
    return HashStore()


def test_node_0_gets_all_reports_and_all_get_its_verdict(store: HashStore) -> None:
    one = OtherNode(store)
    says(one, "one")
    first, two = FirstNode(store), OtherNode(store)
    says(two, "two")
    one.round()
    assert heard_by(first) == ["one", "two"]
    for node in (one, two):
        node.round()
        assert node.is_heard
        assert node.inbox.told is not None
        assert not node.inbox.told.verdict
    first.say(verdict="Rank 2 never joined", hosts=b"who is where")
    first.round()
    for node in (one, two):
        node.round()
        assert node.inbox.told.verdict == "Rank 2 never joined"
        assert node.inbox.hosts == b"who is where"
    says(one, "one, later")
    assert heard_by(first) == ["one, later", "two"]


def test_groups_report_through_a_speaker(store: HashStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "GROUP", 4)
    monkeypatch.setattr(tree, "SPEAKER_SILENT_S", 0.0)
    first = FirstNode(store)
    nodes = [OtherNode(store) for _ in range(11)]
    for number, node in enumerate(nodes):
        says(node, f"node{number}")
    for node in nodes:
        node.round()  # speakers combine what has come
    first.round()
    assert heard_by(first) == sorted(f"node{n}" for n in range(11))
    assert set(first.inbox.digests) == {"group_0", "group_1", "group_2"}
    assert [heard.number for heard in first.inbox.heard.values()] == list(range(1, 12))
    # Without its speaker, node 5, the first node reads the second group itself.
    before = dict(first.inbox.digests)
    says(nodes[5], "node5, later")
    first.round()
    first.round()
    assert names(first.inbox.digests["node_6"]) == ["node5, later"]
    assert {k: v for k, v in first.inbox.digests.items() if k in before} == before


def test_what_a_node_has_found_reaches_all_without_node_0(store: HashStore) -> None:
    """Its ranks may have ended, and the job's store with them, before node 0 could pass it on."""
    first = FirstNode(store)
    nodes = [OtherNode(store) for _ in range(3)]
    for node in nodes:
        says(node, "here")
    first.round()
    for node in nodes:
        node.round()
    nodes[1].found, nodes[2].found = "Rank 3 crashed", "Rank 5 lost rank 3"
    nodes[1].round()
    for node in (*nodes, first):
        node.round()
    assert [node.inbox.found for node in (nodes[0], first)] == ["Rank 3 crashed"] * 2
    assert not nodes[1].inbox.found, "it knows"
    assert not nodes[2].inbox.found, "it has found something itself"


def test_what_did_not_change_is_not_sent_again(
    store: HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "GROUP", 2)
    first = FirstNode(store)
    nodes = [OtherNode(store) for _ in range(3)]
    for node in nodes:
        says(node, "here")
    for node in (*nodes, first):
        node.round()
    meeting = first.meeting
    combined = store.get(f"{meeting}/g/0")
    kept = dict(first.inbox.digests)
    heard_ns = first.inbox.heard[2].sent_ns
    store.set(f"{meeting}/g/0", "not read again")
    nodes[1].report = Report(time.time_ns() + 10**9, nodes[1].report.digest)  # still the same
    for node in (nodes[1], nodes[0], first):
        node.round()
    assert first.inbox.digests == kept
    assert first.inbox.heard[2].sent_ns > heard_ns
    assert store.get(f"{meeting}/g/0") == b"not read again" != combined


@pytest.mark.parametrize("raw", [b"", b"x", b"\xff" * 40, b"\0" * 12, bytes(8) + b"\xff" * 4])
def test_foreign_values_in_the_store_are_ignored(store: HashStore, raw: bytes) -> None:
    first, one = FirstNode(store), OtherNode(store)
    says(one, "one")
    assert heard_by(first) == ["one"]
    first.letters.put(f"{first.meeting}/n/1", raw)
    first.letters.put(f"{first.meeting}/say", raw)
    first.letters.put(f"{first.meeting}/s/0", raw)
    for counter in ("c/0", "v/0", "news"):
        store.add(f"{first.meeting}/{counter}", 1)
    store.add(f"{first.meeting}/count", 2**62)
    assert heard_by(first) == ["one"]
    says(one, "one, later")
    assert heard_by(first) == ["one, later"]


def test_next_attempt_reads_nothing_of_the_previous_one(store: HashStore) -> None:
    first, other = FirstNode(store), OtherNode(store)
    says(other, "before")
    first.say(verdict="Rank 2 never joined")
    first.round()
    other.round()
    assert other.inbox.told is not None
    again = OtherNode(store)
    says(again, "now")
    again.round()
    assert again.inbox.told is None, "a verdict of those who have not heard it is none"
    first_again = FirstNode(store)
    says(again, "now")
    assert heard_by(first_again) == ["now"]
    again.round()
    assert again.inbox.told is not None
    assert not again.inbox.told.verdict


def test_relay_without_its_monitor_leaves_no_files(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    folder = tmp_path / "relay"
    (folder / "in").mkdir(parents=True)
    relay = subprocess.Popen(
        [
            sys.executable, "-m", "hangscope.toolkit.launching.relay",
            "--first", "--directory", str(folder),
        ],
        stdin=subprocess.PIPE,
        env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)},
    )  # fmt: skip
    PrefixStore(PREFIX, store).get("first")  # until it has come to the meeting
    assert relay.stdin is not None
    relay.stdin.close()
    assert relay.wait(120) == 0
    assert not folder.exists()


def test_what_the_monitor_writes_only_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with open(reading) as stdin, open(writing, "wb", buffering=0) as monitor:
        monkeypatch.setattr(sys, "stdin", stdin)
        monitor.write(b"\n\n")
        assert not relay_process._is_left(600.0)
        assert not relay_process._is_left(0.0)
        monitor.write(b"\n")
        monitor.close()
        assert relay_process._is_left(600.0)


def test_relay_says_that_the_store_is_lost_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hangscope.toolkit.launching.relay._RECONNECT_S", 0.0)
    store, is_up = HashStore(), [True]

    class Link:
        def __getattr__(self, name: str) -> object:
            if not is_up[0]:
                raise RuntimeError("Broken pipe\nand a stack")
            return getattr(store, name)

    (tmp_path / "in").mkdir()
    first = FirstNode(store)
    relay = Relay(Link, tmp_path, is_first=False)
    (tmp_path / "report").write_bytes(digest("one"))
    relay.round()
    assert heard_by(first) == ["one"]
    is_up[0] = False
    relay.round()
    assert b"Broken pipe" in (tmp_path / "in" / "lost").read_bytes()
    assert b"stack" not in (tmp_path / "in" / "lost").read_bytes()
    is_up[0] = True
    relay.round()
    assert not (tmp_path / "in" / "lost").exists()
    assert heard_by(first)[-1:] == ["one"]


_SECRET = RunSecret("only on these nodes", is_shared=True)


def test_message_without_the_secret_of_the_job_costs_one_line(store: HashStore) -> None:
    """Anybody who reaches the store could accuse any rank."""
    said: list[str] = []
    first = FirstNode(store, secret=_SECRET, note=said.append)
    one = OtherNode(store, secret=_SECRET, note=said.append)
    store.add(f"{first.meeting}/count", 1)
    guess = letters.Letters(store, RunSecret("a guess", is_shared=True), print)
    says(one, "one")
    guess.put(f"{first.meeting}/n/1", Report(2**62, digest("rank 1 is at fault")).packed())
    for _ in range(3):
        assert heard_by(first) == ["one"]
    one.round()
    guess.put(f"{first.meeting}/say", b'[9,"rank 1 is at fault",0,true]')
    store.add(f"{first.meeting}/news", 1)
    for _ in range(3):
        one.round()
        assert one.inbox.told is not None
        assert not one.inbox.told.verdict
    first.say(deep=True)
    first.round()
    guess.put(f"{first.meeting}/found", b"rank 1 is at fault")
    one.round()
    assert not one.inbox.found
    ignored = "a message between nodes is ignored ({}): it is not from a node of this job"
    assert sorted(said) == [ignored.format(name) for name in ("1", "found", "say")]


def test_nobody_else_takes_the_place_of_node_0(store: HashStore) -> None:
    said: list[str] = []
    one = OtherNode(store, secret=_SECRET, note=said.append)
    FirstNode(store, secret=RunSecret("a guess", is_shared=True))
    says(one, "one")
    assert not one.meeting
    assert len(said) == 1


def test_old_report_played_again_does_not_count(store: HashStore) -> None:
    first, one = FirstNode(store, secret=_SECRET), OtherNode(store, secret=_SECRET)
    says(one, "before")
    assert heard_by(first) == ["before"]
    kept = store.get(f"{first.meeting}/n/1")
    says(one, "now")
    assert heard_by(first) == ["now"]
    store.set(f"{first.meeting}/n/1", kept)
    store.add(f"{first.meeting}/c/0", 1)
    assert heard_by(first) == ["now"]
    assert SEAL_CHARACTERS == 32


def test_sizes_and_numbers_are_limited(store: HashStore, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(digest("one").ljust(1))
    monkeypatch.setattr(letters, "MAX_MESSAGE_BYTES", size + 200)
    monkeypatch.setattr(tree, "MAX_TOTAL_BYTES", int(size * 1.5))
    said: list[str] = []
    first = FirstNode(store, most_nodes=3, note=said.append)
    nodes = [OtherNode(store, note=said.append) for number in range(1, 6)]
    nodes[0].report = Report(time.time_ns(), b"x" * (size + 200))
    for node in nodes[:1]:
        node.round()
    for number, node in enumerate(nodes[1:], 2):
        says(node, f"no{number}")
    assert len(heard_by(first)) == 1, "one is too long, one too much, two too many"
    assert sum("not sent" in line for line in said) == 1
    assert sum("all reports together" in line for line in said) == 1
