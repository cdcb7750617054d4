"""Nodes meet in the job's store: each attempt separately, whatever the nodes are called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore

from hangscope.ring.run_secret import SEAL_CHARACTERS, RunSecret
from hangscope.toolkit.launching import letters
from hangscope.toolkit.launching.relay import PREFIX, Carrier, FirstNode, OtherNode


class Node:
    """A monitor's side of a relay: its files."""

    def __init__(self, store: HashStore, folder: Path, kind: type[Carrier], **how: object) -> None:
        self.folder = folder
        (folder / "in").mkdir(parents=True)
        self.carrier = kind(store, folder, **how)

    def says(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        self.carrier.carry()

    @property
    def has(self) -> dict[str, str]:
        self.carrier.carry()
        found = {path.name: path.read_text() for path in (self.folder / "in").iterdir()}
        ahead_ns = [int(found.pop(name)) for name in list(found) if name.startswith("clock_")]
        assert all(-60 * 10**9 < ahead <= 0 for ahead in ahead_ns), "all run on this clock"
        return found


@pytest.fixture
def store() -> HashStore:
    return HashStore()


def test_node_0_gets_all_reports_and_all_get_its_verdict(store: HashStore, tmp_path: Path) -> None:
    one = Node(store, tmp_path / "1", OtherNode)
    one.says("report", "one")
    assert one.has == {}, "nobody is there yet"
    first, two = Node(store, tmp_path / "0", FirstNode), Node(store, tmp_path / "2", OtherNode)
    two.says("report", "two")
    assert one.has == {}
    assert sorted(first.has.values()) == ["one", "two"]
    assert one.has == two.has == {"first": ""}
    first.says("verdict", "Rank 2 never joined")
    assert one.has == two.has == {"first": "", "verdict": "Rank 2 never joined"}
    one.says("report", "one, later")
    assert sorted(first.has.values()) == ["one, later", "two"]


@pytest.mark.parametrize("stamp", [b"", b"x", b"x y", b"x -1", b"x " + b"9" * 5000, b"\xff \xff"])
def test_foreign_values_in_the_store_are_ignored(
    store: HashStore, tmp_path: Path, stamp: bytes
) -> None:
    first, one = Node(store, tmp_path / "0", FirstNode), Node(store, tmp_path / "1", OtherNode)
    one.says("report", "one")
    assert list(first.has.values()) == ["one"]
    meeting = store.get("first").decode()[SEAL_CHARACTERS:]
    store.set(f"{meeting}/1/stamp", stamp)
    store.add(f"{meeting}/count", 2**62)
    store.set(f"{meeting}/2/stamp", "no report with it")
    assert list(first.has.values()) == ["one"]
    one.says("report", "one, later")
    assert list(first.has.values()) == ["one, later"]


def test_next_attempt_reads_nothing_of_the_previous_one(store: HashStore, tmp_path: Path) -> None:
    first, other = Node(store, tmp_path / "0", FirstNode), Node(store, tmp_path / "1", OtherNode)
    other.says("report", "before")
    first.says("verdict", "Rank 2 never joined")
    assert "verdict" in other.has
    again = Node(store, tmp_path / "again1", OtherNode)
    again.says("report", "now")
    assert again.has == {}, "a verdict of those who have not heard it is none"
    first_again = Node(store, tmp_path / "again0", FirstNode)
    assert first_again.has == {}
    assert again.has == {}
    assert first_again.has == {"node_1": "now"}
    assert again.has == {"first": ""}


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
    assert relay.wait(60) == 0
    assert not folder.exists()


_SECRET = RunSecret("only on these nodes", is_shared=True)


def test_message_without_the_secret_of_the_job_costs_one_line(
    store: HashStore, tmp_path: Path
) -> None:
    """Anybody who reaches the store could accuse any rank."""
    first = Node(store, tmp_path / "0", FirstNode, secret=_SECRET)
    one = Node(store, tmp_path / "1", OtherNode, secret=_SECRET)
    meeting = store.get("first").decode()[SEAL_CHARACTERS:]
    store.add(f"{meeting}/count", 1)
    guess = letters.Letters(store, RunSecret("a guess", is_shared=True), print)
    guess.put(f"{meeting}/1", b"rank 1 is at fault")
    guess.put(f"{meeting}/1/stamp", b"x 99999999999999999")
    guess.put(f"{meeting}/verdict", b"rank 1 is at fault")
    one.says("report", "one")
    for _ in range(3):
        assert first.has == {"node_2": "one"}
        assert one.has == {"first": ""}
    for node, key in ((first, "stamp"), (one, "verdict")):
        said = (node.folder / "notes").read_text()
        assert (
            said
            == f"a message between nodes is ignored ({key}): it is not from a node of this job\n"
        )


def test_nobody_else_takes_the_place_of_node_0(store: HashStore, tmp_path: Path) -> None:
    one = Node(store, tmp_path / "1", OtherNode, secret=_SECRET)
    Node(store, tmp_path / "0", FirstNode, secret=RunSecret("a guess", is_shared=True))
    one.says("report", "one")
    assert one.has == {}
    assert (one.folder / "notes").read_text().count("\n") == 1


def test_old_report_played_again_does_not_count(store: HashStore, tmp_path: Path) -> None:
    first = Node(store, tmp_path / "0", FirstNode, secret=_SECRET)
    one = Node(store, tmp_path / "1", OtherNode, secret=_SECRET)
    one.says("report", "before")
    assert first.has == {"node_1": "before"}
    meeting = store.get("first").decode()[SEAL_CHARACTERS:]
    kept = {key: store.get(f"{meeting}/{key}") for key in ("1", "1/stamp")}
    one.says("report", "now, and longer")
    assert first.has == {"node_1": "now, and longer"}
    for key, value in kept.items():
        store.set(f"{meeting}/{key}", value)
    assert first.has == {"node_1": "now, and longer"}


def test_sizes_and_numbers_are_limited(
    store: HashStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "MAX_MESSAGE_BYTES", 100)
    monkeypatch.setattr("hangscope.toolkit.launching.relay.MAX_TOTAL_BYTES", 150)
    first = Node(store, tmp_path / "0", FirstNode, most_nodes=3)
    nodes = [Node(store, tmp_path / str(number), OtherNode) for number in range(1, 6)]
    nodes[0].says("report", "x" * 101)
    for node in nodes[1:]:
        node.says("report", "y" * 90)
    assert sorted(first.has) == ["node_2"], "one is too long, one too much, two too many"
    assert "not sent" in (nodes[0].folder / "notes").read_text()
    assert (first.folder / "notes").read_text().count("all reports together") == 1
