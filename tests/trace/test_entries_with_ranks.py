"""Entries that state their own rank: one file for a job, or one entry per line."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.files.debug_pages import dumps_on_page
from hangscope.trace.load import load_trace
from tests.trace.dumps import dump, entry, pending, write

WORLD = 3


def _entries(rank: int) -> list[dict[str, Any]]:
    """Rank 2 does not come to the second operation."""
    made = [entry(1)] if rank == 2 else [entry(1), pending(2)]
    return [{**one, "rank": rank} for one in made]


def _lines(path: Path, entries: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in entries))


@pytest.mark.parametrize("name", ["job.jsonl", "trace_1.jsonl", "all.json"])
def test_file_with_entries_of_all_ranks_is_split(tmp_path: Path, name: str) -> None:
    """A number in its name cannot apply to all of them, nor can the counters of one."""
    mixed = [one for step in range(2) for rank in range(WORLD) for one in _entries(rank)[step:][:1]]
    if name.endswith("l"):
        _lines(tmp_path / name, mixed)
    else:
        counters = dict.fromkeys(("last_enqueued_collective", "last_completed_collective"), 9)
        write(tmp_path, name, dump(mixed, WORLD, pg_status={"0": counters}))
    trace = load_trace([tmp_path])
    assert sorted(trace.ranks) == list(range(WORLD))
    assert [int((trace.records["rank"] == rank).sum()) for rank in range(WORLD)] == [2, 2, 1]
    assert trace.members["enqueued"].max() == 2
    found = diagnose(trace)
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))


PAGE = "\n<!doctype html>\n<head>\n <title>FlightRecorder - PyTorch</title>\n</head>\n{}"
OF_RANK = "<h2>Rank {}: node0:25{}</h2>\n\n            <pre>{}</pre>\n        "
NO_ANSWER = "<h2>Rank 3: node1:25</h2>\n<p>Failed to fetch: status=503</p>\n<pre>down</pre>"


@pytest.mark.parametrize("saved_by_browser", [False, True])
def test_the_debug_servers_page_of_all_ranks(tmp_path: Path, saved_by_browser: bool) -> None:
    """A browser writes ``>`` as an entity; which rank gave no answer left no dump."""
    sections = []
    for rank in range(WORLD):
        sent = entry(1, f"nccl:send {rank}->{rank}", p2p_seq_id=1, is_p2p=True)
        rows = [sent, *({**one, "record_id": 1} for one in _entries(rank)[1:])]
        text = json.dumps(dump(rows, 4), indent=2)
        text = html.escape(text, quote=False) if saved_by_browser else text
        sections.append(OF_RANK.format(rank, rank, text))
    (tmp_path / "page.html").write_text(PAGE.format("".join([*sections, NO_ANSWER])))
    trace = load_trace([tmp_path])
    assert sorted(trace.ranks) == list(range(WORLD))
    assert trace.missing_ranks == (3,)
    assert {s.raw for s in trace.signatures} >= {"nccl:send 0->0", "nccl:all_reduce"}


def test_page_whose_answers_never_end_is_no_page_of_dumps() -> None:
    """Read in one pass: looking for each end anew would take hours here."""
    page = PAGE.format(OF_RANK.format(1, 1, "{").removesuffix("</pre>\n        ") * 300_000)
    assert dumps_on_page(page.lstrip().encode()) is None


@pytest.mark.parametrize("name", ["recorder-{}.ndjson", "recorder.{letter}.jsonl"])
def test_file_with_entries_of_one_rank_belongs_to_it(tmp_path: Path, name: str) -> None:
    for rank in range(WORLD):
        _lines(tmp_path / name.format(rank, letter="abc"[rank]), _entries(rank))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))


def test_file_name_decides_if_all_entries_agree_on_another_rank(tmp_path: Path) -> None:
    """Entries may number differently than the job, for example by node."""
    write(tmp_path, "trace_1", [{**one, "rank": 0} for one in _entries(0)])
    assert list(load_trace([tmp_path]).ranks) == [1]


@pytest.mark.parametrize("listed", [True, False])
def test_complete_membership_is_certain_only_if_all_are_listed(
    tmp_path: Path, listed: bool
) -> None:
    config = {} if listed else {"pg_config": None}
    for rank in range(2 * WORLD):
        write(tmp_path, f"trace_{rank}", dump([entry(1), pending(2)], 2 * WORLD, **config))
    found = diagnose(load_trace([tmp_path]))
    assert found.verdict is Verdict.STUCK_COLLECTIVE
    assert found.confidence is (Confidence.CERTAIN if listed else Confidence.LIKELY)
