"""What the documentation refers to is there: files, headings, options, variables."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from hangscope.cli import COMMANDS
from tools import pages

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "verdicts").glob("*.md")),
]
CALL = re.compile(rf"hangscope ({'|'.join(COMMANDS)})\b([^`\n|#]*)")


def anchors_of(page: Path) -> set[str]:
    """What a link into a page may name: its headings as GitHub spells them, and its own marks."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    spelt = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return spelt | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_are_valid(page: Path) -> None:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if link.startswith(("http://", "https://")):
            continue
        known = target.exists() and (not anchor or anchor in anchors_of(target))
        if not known:
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_of_commands_exist(page: Path) -> None:
    unknown = []
    for name, rest in CALL.findall(page.read_text()):
        command = importlib.import_module(f"hangscope.cli.{name}").command
        known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
        own = re.split(r"\s--(?:\s|$)", rest)[0]  # behind it stands the job's own command line
        unknown += [option for option in re.findall(r"--[a-z-]+", own) if option not in known]
    assert not unknown


def test_documented_variables_are_read() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "hangscope").rglob("*.py"))
    for page in PAGES:
        named = set(re.findall(r"\bHANGSCOPE(?:_[A-Z]+)+\b", page.read_text()))
        assert not [name for name in named if name not in source], page.name


@pytest.mark.long
def test_pages_made_from_code_are_those_of_today(tmp_path: Path) -> None:
    (tmp_path / "verdicts").mkdir()
    pages.write(tmp_path)
    older = [
        str(made.relative_to(tmp_path))
        for made in tmp_path.rglob("*.md")
        if made.read_text() != (pages.DOCS / made.relative_to(tmp_path)).read_text()
    ]
    assert not older, "make pages writes them anew"
