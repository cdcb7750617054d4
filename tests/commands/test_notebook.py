"""What `hangscope.load` gives a notebook."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import hangscope

DUMPS = Path(__file__).parents[2] / "fixtures" / "wrapped-ring" / "dumps"


@pytest.fixture(scope="module")
def run() -> hangscope.Run:
    return hangscope.load(DUMPS)


def test_records_have_the_documented_types(run: hangscope.Run) -> None:
    types = {name: str(kind) for name, kind in run.records.dtypes.items()}
    assert types["rank"] == "int32"
    assert types["op"] == types["group"] == types["line"] == types["state"] == "category"
    assert types["created"] == "datetime64[ns, UTC]"
    assert types["duration_s"] == "float64"
    assert len(run.records) == len(run.trace.records)


def test_unfinished_operations_have_no_end(run: hangscope.Run) -> None:
    waiting = run.records[run.records["state"] != "completed"]
    assert waiting["completed"].isna().all()
    assert waiting["duration_s"].isna().all()


def test_ranks_and_groups(run: hangscope.Run) -> None:
    assert list(run.ranks.index[run.ranks["role"] == "culprit"]) == [1]
    assert run.ranks["waiting_s"].dtype == "float64"
    assert run.groups["ranks"][0] == (0, 1, 2, 3)


def test_lateness_has_a_row_per_rank(run: hangscope.Run) -> None:
    assert list(run.lateness.index) == [0, 1, 2, 3]
    assert run.lateness.attrs["span_s"] > 0


def test_shows_itself(run: hangscope.Run) -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(run)
    assert "rank 1" in out.getvalue().lower()
    assert run._repr_html_().lstrip().startswith("<!")
    assert repr(run).startswith("<hangscope.Run: missing_rank, 4 ranks, ")


def test_neither_loading_nor_analyzing_imports_pandas() -> None:
    code = (
        f"import hangscope, sys; hangscope.load({str(DUMPS)!r}); assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
