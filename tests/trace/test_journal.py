"""Journals are untrusted files: their content may be torn, foreign or made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.replay.observed import seen_event
from hangscope.trace.external_reports.journal import read_journal
from hangscope.trace.model import RankFacts
from hangscope.trace.verdict_codec import OWN_VERDICT

HEAD = '{"hangscope":"journal/1","run_id":"job","attempt":2,"host":"node0","started_ns":1}\n'


def _facts(tmp_path: Path, *events: dict[str, Any] | str) -> list[RankFacts]:
    lines = [e if isinstance(e, str) else json.dumps(e) for e in events]
    path = tmp_path / "monitor.journal"
    path.write_text(HEAD + "".join(f"{line}\n" for line in lines))
    return [fragment.facts for fragment in read_journal(path)]


def test_first_exit_of_a_rank_counts(tmp_path: Path) -> None:
    end = {"event": "exit", "rank": 1, "pid": 7, "at_ns": 5, "code": None, "signal": 9}
    (facts,) = _facts(tmp_path, end, {**end, "signal": 15})
    assert (facts.rank, facts.pid, facts.host, facts.attempt) == (1, 7, "node0", 2)
    assert facts.exit is not None
    assert (facts.exit.kind, facts.exit.signal, facts.exit.at_ns) == ("signal", 9, 5)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ([3, 0], {0, 3}),
        ([], set()),
        (None, None),
        ("0, 3", None),
        ([3, -1, True, "0", 1 << 40], {3}),
    ],
)
def test_ranks_not_signalled_by_then(
    tmp_path: Path, written: object, read: set[int] | None
) -> None:
    end = {"event": "exit", "rank": 1, "signal": 15, "untold": written}
    (facts,) = _facts(tmp_path, end)
    assert facts.exit is not None
    assert facts.exit.not_signalled == read


def test_ranks_signalled_by_then(tmp_path: Path) -> None:
    (facts,) = _facts(tmp_path, {"event": "exit", "rank": 1, "signal": 15, "told": [3, True, 0]})
    assert facts.exit is not None
    assert facts.exit.signalled == {0, 3}


def test_process_seen_before_it_could_record_has_issued_nothing(tmp_path: Path) -> None:
    starting = {"event": "seen", "rank": 1, "pid": 7, "alive": True, "recorded": False}
    (facts,) = _facts(tmp_path, starting)
    assert (facts.alive, facts.initialized) == (True, False)
    assert _facts(tmp_path, {**starting, "recorded": True})[0].initialized is None
    assert _facts(tmp_path, starting, {"event": "unseen", "rank": 1, "pid": 7}) == []
    end = {"event": "exit", "rank": 1, "pid": 7, "signal": 9, "recorded": False}
    assert _facts(tmp_path, end)[0].initialized is False


def test_rank_that_follows_from_the_order_of_processes(tmp_path: Path) -> None:
    seen = {"event": "seen", "rank": 1, "pid": 7, "alive": True, "recorded": False}
    assert not _facts(tmp_path, seen)[0].is_placed_by_order
    (facts,) = _facts(tmp_path, {**seen, "by_order": True})
    assert facts.is_placed_by_order
    assert seen_event(facts, recorded=False)["by_order"] is True


@pytest.mark.parametrize("rank", [-1, 10**12, 1 << 17, True, "1", 1.0, None])
def test_number_that_is_no_rank_belongs_to_none(tmp_path: Path, rank: object) -> None:
    events = ({"event": "exit", "rank": rank}, {"event": "seen", "rank": rank, "alive": True})
    assert _facts(tmp_path, *events) == []


def test_invalid_value_is_unknown(tmp_path: Path) -> None:
    made_up = {"pid": 1 << 40, "at_ns": 10**30, "code": 1 << 99, "signal": -3, "cpu_busy": 1e400}
    ended, seen = _facts(
        tmp_path,
        {"event": "exit", "rank": 0, **made_up},
        {"event": "seen", "rank": 1, "alive": True, "state": 3, "threads": 4, **made_up},
    )
    assert ended.exit is not None
    assert (ended.pid, ended.exit.kind, ended.exit.at_ns) == (None, "unknown", 0)
    assert (seen.pid, seen.observed_ns, seen.cpu_busy, seen.process_state) == (None, 0, None, None)


def test_lines_that_are_no_events_are_skipped(tmp_path: Path) -> None:
    good = {"event": "exit", "rank": 3, "code": 0}
    (facts,) = _facts(tmp_path, "[" * 100_000, '{"event": "exit", "rank": 2', "", "7", good)
    assert facts.rank == 3


def test_verdicts_are_kept_but_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "monitor_node0.journal"
    exit_ = '{"event":"exit","rank":1,"pid":7,"at_ns":5,"code":1}\n'
    said = (
        '{{"event":"verdict","at_ns":9,"verdict":"rank_crashed","culprits":{},"summary":"x{}"}}\n'
    )
    path.write_text(HEAD + said.format("[1]", "") + exit_ + said.format('[1,-2,"3",null]', "y"))
    first, second = [claim for fragment in read_journal(path) for claim in fragment.claims]
    assert (first.kind, first.text, first.at_ns, first.certain) == (OWN_VERDICT, "x", 9, False)
    assert (second.text, second.details.culprits) == ("xy", (1,))
    path.write_text(HEAD + exit_ + '{"event":"verdict","culprits":{"a":1},"summary":3}\n')
    (claim,) = [claim for fragment in read_journal(path) for claim in fragment.claims]
    assert (claim.text, claim.details.culprits) == ("", ())


def test_hosts_of_a_verdict_are_names(tmp_path: Path) -> None:
    path = tmp_path / "monitor.journal"
    seen = {"event": "seen", "rank": 1, "pid": 7, "alive": True}
    said = {"event": "verdict", "at_ns": 5, "hosts": ["node\x1b[1m0", 7, None]}
    path.write_text(HEAD + f"{json.dumps(seen)}\n{json.dumps(said)}\n")
    (claim,) = read_journal(path)[0].claims
    assert claim.details.hosts == ("node0", "7", "")
