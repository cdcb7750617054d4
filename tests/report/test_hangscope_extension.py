"""The extra key of our own dumps survives being written and read."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.replay import find_fixtures
from hangscope.replay.verify import load_recorded
from hangscope.report import flight_recorder
from hangscope.trace.files.unpickle import load_plain
from hangscope.trace.flight_recorder import hangscope_extension
from hangscope.trace.load import load_trace
from hangscope.trace.model import (
    Claim,
    ClaimDetails,
    ExceptionFacts,
    ExitFacts,
    Flag,
    Frame,
    Phase,
    RankFacts,
    State,
    ThreadStack,
    flagged,
)
from hangscope.trace.verdict_codec import OWN_VERDICT
from tests import view_samples as samples
from tests.depth import DEEP

ROOT = Path(__file__).resolve().parents[2] / "fixtures"
STACK = (Frame("load", "data.py", 7), Frame("main", "train.py", 40))
FACTS = RankFacts(
    rank=3,
    alive=False,
    process_state="gone",
    gil_blocked=False,
    cpu_busy=0.5,
    heartbeat_ns=5,
    heartbeat_interval_s=1.0,
    observed_ns=9,
    initialized=True,
    finalized=False,
    phases=(Phase("checkpoint", 11, "step 7"),),
    threads=(
        ThreadStack("MainThread", True, STACK, 12, native_id=77),
        ThreadStack("MainThread", True, STACK[1:], 15, source="signal"),
    ),
    freed_ns=16,
    started_ns=2,
    unobservable=("cuda graph replay",),
    exit=ExitFacts(
        "signal",
        signal=9,
        at_ns=13,
        by_launcher=True,
        text="killed",
        not_signalled=frozenset({0, 2}),
        signalled=frozenset({3}),
    ),
    exception=ExceptionFacts("builtins.ValueError", "no label", STACK, 14, "loader", False),
    handled=ExceptionFacts("builtins.KeyError", "step", STACK[1:], 8),
)


def test_extension_survives_a_round_trip() -> None:
    plain = load_plain(pickle.dumps(hangscope_extension.encode_facts(FACTS)))
    assert hangscope_extension.decode_into(plain, RankFacts(rank=3)) == FACTS


def _hostile(value: Any) -> list[dict[str, Any]]:
    story = hangscope_extension.encode_facts(FACTS)
    return [story | {key: value} for key in story]


@pytest.mark.parametrize("value", [None, -1, 1 << 80, 1e400, "x" * 9, [], [[]], {}, [{}], [[1, 2]]])
def test_wrong_types_leave_the_rest_readable(value: Any) -> None:
    for story in _hostile(value):
        found = hangscope_extension.decode_into(story, RankFacts(rank=3))
        assert found.rank == 3
        assert found.exit is None or found.exit.kind == "signal"
    assert hangscope_extension.decode_into(value, RankFacts(rank=3)).exit is None


def test_control_characters_are_removed() -> None:
    story = hangscope_extension.encode_facts(FACTS)
    story["exception"]["message"] = "no\x1b[31m label"
    story["phases"] = [["check\x1b]0;x\x07point", 1, "d"]]
    found = hangscope_extension.decode_into(story, RankFacts(rank=3))
    assert found.exception is not None
    assert "\x1b" not in found.exception.message + found.phases[0].name


def test_looks_at_a_job_that_has_ended_are_not_exported() -> None:
    """Nobody compared two looks at processes that were gone."""
    trace = replace(samples.hang().trace, live=False)
    assert hangscope_extension.looks_of(flight_recorder.to_dump(trace, 0)["hangscope"]) is None
    running = flight_recorder.to_dump(replace(trace, live=True), 0)["hangscope"]
    assert hangscope_extension.looks_of(running) == trace.looks == 2


def test_fewest_looks_count_where_dumps_were_exported_at_different_times(tmp_path: Path) -> None:
    trace = samples.hang().trace
    for rank, looks in ((0, 3), (1, 1), (2, 2), (3, 3)):
        dump = flight_recorder.to_dump(replace(trace, looks=looks), rank)
        (tmp_path / f"comm_lib_trace_rank_{rank}").write_bytes(pickle.dumps(dump))
    assert load_trace([tmp_path]).looks == 1


def test_verdict_of_a_monitor_is_exported_once(tmp_path: Path) -> None:
    said = Claim(
        OWN_VERDICT,
        text="Rank 1 crashed",
        at_ns=5,
        details=ClaimDetails(verdict="rank_crashed", confidence="likely", culprits=(1,)),
    )
    flight_recorder.write(replace(samples.hang().trace, claims=(said,)), tmp_path)
    (claim,) = load_trace([tmp_path]).claims
    assert (claim.kind, claim.text, claim.at_ns) == (said.kind, said.text, said.at_ns)
    assert claim.details == said.details


@pytest.mark.parametrize("value", [None, 7, "x", {}, [None, 7, "x", []], [{"culprits": "all"}]])
def test_malformed_verdicts_name_nobody(value: Any) -> None:
    claims = hangscope_extension.verdicts_in({"verdicts": value})
    assert all(claim.details.culprits == () for claim in claims)


@pytest.mark.parametrize("flags", [None, "16", [16], [16, "x", 3]])
def test_flags_are_accepted_only_where_they_apply(flags: Any) -> None:
    found = hangscope_extension.flags_of({"flags": flags}, 3)
    if flags is None or len(flags) != 3:
        assert found is None
    else:
        assert found is not None
        assert found.tolist() == [16, 0, 3]
    cleaned = hangscope_extension.flags_of({"flags": [int(Flag.SYNTHETIC) | 16]}, 1)
    assert cleaned is not None
    assert cleaned.tolist() == [16]


def test_facts_known_only_from_a_log_are_not_exported() -> None:
    trace = samples.hang().trace
    (source, *_) = trace.sources
    trace = replace(trace, sources=(replace(source, format="job-log"),))
    assert "phases" not in flight_recorder.to_dump(trace, 0)["hangscope"]


@pytest.mark.long
@pytest.mark.skipif(not ROOT.is_dir(), reason="no recorded hangs beside the tests")
def test_exports_get_the_verdict_of_their_source(tmp_path: Path) -> None:
    """For all recorded hangs except those with a log, whose statements are no part of a dump, as of
    when they were recorded: a verdict may rest on two looks at a running job, or be what its
    monitor said before its end. One differs, and `export` says so: there the dumps name rank 1
    beside rank 2, because the thread that waits is not told from the one that ended.

    Every third of them is tried; all at depth."""
    judged, differing = 0, []
    tried = find_fixtures([ROOT])[:: 1 if DEEP else 3]
    for path in tried:
        trace = load_recorded(path / "dumps")
        if any(source.format == "job-log" for source in trace.sources):
            continue
        target = tmp_path / path.name
        flight_recorder.write(trace, target)
        mine, theirs = diagnose(trace), diagnose(load_trace([target]))
        judged += 1
        if (mine.verdict, mine.culprits) != (theirs.verdict, theirs.culprits):
            differing.append(path.name)
    assert judged > (90 if DEEP else 30)
    assert differing == [path.name for path in tried if path.name == "halo-wrong-neighbour"]


@pytest.mark.skipif(not ROOT.is_dir(), reason="no recorded hangs beside the tests")
def test_export_keeps_what_its_source_leaves_undecided(tmp_path: Path) -> None:
    """Native Gloo lists no members and records no completions, so its export has neither."""
    trace = load_trace([ROOT / "native-healthy" / "dumps"])
    flight_recorder.write(trace, tmp_path)
    again = load_trace([tmp_path])
    assert {g.name: g.listed for g in again.groups} == {g.name: g.listed for g in trace.groups}
    assert {g.name: g.listed for g in trace.groups}["0"] is False
    assert again.records["flags"].tolist() == trace.records["flags"].tolist()
    unobserved = flagged(again.records["flags"], Flag.UNOBSERVED)
    assert unobserved.sum() == 3
    assert set(again.records["state"][unobserved].tolist()) == {State.SCHEDULED}
