"""``python -m tools.pages`` (``make pages``): the pages of the documentation that follow from code.

They are kept in git, so that people read them without building anything; ``tests/test_docs.py``
shows which of them are older than the code.
"""

from __future__ import annotations

from pathlib import Path

from tools import asked_elsewhere, format_page, log_lines, verdict_pages

DOCS = verdict_pages.ROOT / "docs"


def write(docs: Path = DOCS) -> None:
    """Write all of them below a folder."""
    verdict_pages.write(docs / verdict_pages.PAGES.relative_to(DOCS))
    for made in (format_page, asked_elsewhere, log_lines):
        made.write(docs / made.PAGE.relative_to(DOCS))


if __name__ == "__main__":
    write()
