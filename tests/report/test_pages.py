"""The documentation mentions everything that the code knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hangscope.diagnosis.model import Verdict
from hangscope.recording.settings import KNOWN
from hangscope.report.formatting import headline

ROOT = Path(__file__).parents[2]
FOR_OUR_TESTS = {"HANGSCOPE_FAKE"}


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_is_explained_under_its_headline(verdict: Verdict) -> None:
    page = (ROOT / "docs/on-call.md").read_text()
    rows = [line for line in page.splitlines() if f"`{verdict.value}`" in line]
    assert [row.split("|")[1].strip() for row in rows if row[0] == "|"] == [headline(verdict)]


def test_every_variable_is_explained() -> None:
    page = (ROOT / "docs/operating.md").read_text()
    table = page[page.index("## Variables") :]
    rows = re.findall(r"^\| `(HANGSCOPE\w*)", table, re.MULTILINE)
    assert set(rows) == KNOWN - FOR_OUR_TESTS


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text()
    tree = index[index.index("toctree") :].split("```")[0].split()
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages <= set(tree)
    for page in pages:
        assert f"({page}.md)" in index, page
