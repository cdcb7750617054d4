"""Who makes everybody wait, in simulated jobs of which that is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hangscope.cli import cli
from hangscope.diagnosis.engine import diagnose
from hangscope.lateness.arrivals import Arrivals, arrivals
from hangscope.lateness.lateness import lateness
from hangscope.lateness.model import costliest
from hangscope.report.flight_recorder import write
from hangscope.report.heat_map import heat_map
from hangscope.report.html import to_html
from hangscope.report.lateness import remarks, sentence, to_dict
from hangscope.trace.model import Trace
from hangscope.tui import late
from hangscope.tui.snapshot import take
from tests.diagnosis.builder import Job
from tools.stragglers import HEALTHY, KINDS, Case, draw, simulate


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in HEALTHY])
def test_who_is_late_is_named(kind: str) -> None:
    case = draw(rng(7), kind, 0.2)
    (straggler,) = lateness(simulate(case, rng(8))).stragglers
    assert straggler.ranks == case.culprits
    assert straggler.kind == {"host": "host", "position": "position"}.get(kind, "rank")
    expected = {"every": "every 10", "sometimes": "sometimes"}.get(kind, "always")
    assert straggler.pattern == expected


@pytest.mark.parametrize("kind", sorted(HEALTHY))
def test_nobody_is_named_where_nobody_is_late_by_itself(kind: str) -> None:
    case = draw(rng(9), kind, 0.2)
    assert lateness(simulate(case, rng(10))).stragglers == ()


def test_cost_is_the_time_that_all_others_wait() -> None:
    case = Case("rank", 0.2, 8, 100, 0.0, (5,))
    found = lateness(simulate(case, rng(3)))
    # A tenth of a second of work a step, a fifth of it too much.
    assert found.stragglers[0].lost_s == pytest.approx(100 * 0.02, rel=0.1)
    assert found.ranks[5].waited_s < 0.1 * found.ranks[0].waited_s


def test_clocks_of_hosts_that_disagree_make_nobody_late() -> None:
    trace = simulate(Case("none", 0.0, 8, 100, 0.01, ()), rng(4))
    records = trace.records.copy()
    for column in ("created_ns", "completed_ns"):
        records[column][records["rank"] >= 4] += 10**9
    assert lateness(replace(trace, records=records)).stragglers == ()


def test_whoever_waits_for_a_late_rank_in_a_small_group_is_not_late_in_the_large_one() -> None:
    found = lateness(simulate(Case("rank", 0.3, 8, 100, 0.01, (2,)), rng(5)))
    assert [s.ranks for s in found.stragglers] == [(2,)]


def test_one_long_wait_is_an_event_and_no_habit() -> None:
    job = Job(8)
    for step in range(50):
        for rank in range(8):
            late = 3.0 if (rank, step) == (6, 20) else 0.0001 * ((rank * 7 + step) % 5)
            job.op(rank, at=step + (4 if step > 20 else 0) + late)
    assert lateness(job.trace()).stragglers == ()


def test_few_long_waits_for_one_rank_are_mentioned() -> None:
    """It evaluates alone, twice."""
    job = Job(3)
    for step in range(40):
        for rank in range(3):
            alone = 5.0 if rank == 0 and step in (19, 39) else 0.0
            job.op(rank, at=0.1 * step + (5 if step > 19 else 0) + alone)
    found = lateness(job.trace())
    assert found.stragglers == ()
    assert "the others waited 10 s for rank 0, in too few waits" in remarks(found)[0]


def test_collectives_that_miss_a_member_do_not_count() -> None:
    job = Job(4)
    for rank in (0, 1, 2):
        job.op(rank)
    found = lateness(job.trace())
    assert found.collectives == 0
    assert remarks(found) == ()


def test_sentence_says_who_how_much_how_often_and_where() -> None:
    (straggler,) = lateness(simulate(Case("every", 0.2, 8, 200, 0.01, (5,)), rng(6))).stragglers
    words = sentence(straggler)
    assert words.startswith("Rank 5 makes everybody else wait: ")
    assert "every 10th time" in words
    assert "train.py:40 in train" in words


def test_json_has_everything() -> None:
    found = to_dict(lateness(simulate(Case("host", 0.2, 8, 100, 0.01, (4, 5, 6, 7)), rng(6))))
    assert found["schema"] == "hangscope/lateness/1"
    assert found["stragglers"][0]["name"] == "node1"
    assert len(found["ranks"]) == 8
    json.dumps(found)


def test_command_reads_dumps(tmp_path: Path) -> None:
    trace = simulate(Case("rank", 0.3, 8, 60, 0.01, (2,)), rng(5))
    write(trace, tmp_path / "dumps")
    run = CliRunner().invoke(cli, ["slow", str(tmp_path / "dumps"), "--json"])
    assert run.exit_code == 1
    assert json.loads(run.stdout)["stragglers"][0]["ranks"] == [2]
    shown = CliRunner().invoke(cli, ["slow", str(tmp_path / "dumps"), "--top", "3"])
    assert "Rank 2 makes everybody else wait" in " ".join(shown.stdout.split())
    assert "5 more ranks" in shown.stdout


def test_page_shows_the_late_rank_first() -> None:
    trace = simulate(Case("rank", 0.3, 8, 60, 0.01, (2,)), rng(5))
    page = to_html(diagnose(trace), trace)
    assert page.index("lost to rank 2<") < page.index("lost to rank 3<")
    assert "Who made everybody wait" in page


def test_table_page_and_terminal_list_ranks_in_one_order_from_arrivals_sorted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = simulate(Case("in turn", 0.5, 8, 100, 0.03, ()), rng(6))
    expected = [one.rank for one in costliest(lateness(trace).ranks)]
    page = heat_map(trace)
    assert page is not None
    assert [row.rank for row in page.rows] == expected
    calls: list[Trace] = []

    def counted(trace: Trace, newest: int | None) -> Arrivals:
        calls.append(trace)
        return arrivals(trace, newest)

    monkeypatch.setattr("hangscope.lateness.lateness.arrivals", None)
    monkeypatch.setattr(late, "arrivals", counted)
    table = late.LateTable()
    monkeypatch.setattr(table, "relayout", lambda: None)
    table.show(take(trace, diagnose(trace)))
    assert [row.rank for row in table.rows] == expected
    assert len(calls) == 1
