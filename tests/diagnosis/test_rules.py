"""docs/diagnosis.md lists the files that decide each rule; those files exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text below one heading of the page."""
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_rule_has_its_files() -> None:
    rules = [int(n) for n in re.findall(r"^(\d+)\. \*\*", section("The rules"), re.MULTILINE)]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section("Where each rule is decided"), re.MULTILINE)
    assert rules == list(range(1, len(rules) + 1))
    assert [int(number) for number, _ in rows] == rules
    assert all(re.search(r"`[\w/]+\.py`", files) for _, files in rows)


def test_the_files_are_there() -> None:
    named = re.findall(r"`([\w/]+\.py)`", section("Where each rule is decided"))
    folders = {True: ROOT / "hangscope", False: ROOT / "hangscope" / "diagnosis"}
    missing = [name for name in named if not (folders[name.startswith("trace/")] / name).is_file()]
    assert named
    assert not missing
