"""docs/diagnosis.md names what there is, and its table of doubts is made from the rows."""

from __future__ import annotations

import re

from hangscope.diagnosis.doubts.table import DOUBTS
from tools.ablation.doubts_table import PAGE, with_table

DIAGNOSIS = PAGE.parents[1] / "hangscope" / "diagnosis"


def test_table_of_doubts_is_up_to_date() -> None:
    """``python -m tools.ablation.doubts_table`` writes it."""
    page = PAGE.read_text()
    assert with_table(page) == page
    assert all(f"| `{doubt.name}` |" in page for doubt in DOUBTS)


def test_folders_and_files_are_there() -> None:
    page = PAGE.read_text()
    folders = sorted(path.name for path in DIAGNOSIS.iterdir() if (path / "__init__.py").is_file())
    named = set(re.findall(r"`(\w+)/", page))
    assert [f for f in folders if f not in named | {"processes"}] == []
    files = [f for f in re.findall(r"`([\w/]+\.py)`", page) if not f.startswith(("tests", "trace"))]
    assert [f for f in files if not list(DIAGNOSIS.rglob(f.rpartition("/")[2]))] == []


def test_page_is_read_in_one_sitting() -> None:
    assert len(PAGE.read_text().splitlines()) <= 300
