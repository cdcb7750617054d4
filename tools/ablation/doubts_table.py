"""``python -m tools.ablation.doubts_table``: the table of doubts in docs/diagnosis.md."""

from __future__ import annotations

import inspect
from pathlib import Path

from hangscope.diagnosis.doubts.table import DOUBTS

PAGE = Path(__file__).parents[2] / "docs" / "diagnosis.md"
_BEGIN, _END = "<!-- doubts: made from the rows -->\n", "<!-- end -->\n"


def table() -> str:
    """One row per doubt: its name, the most that a cause may claim, and when it applies."""
    lines = ["| doubt | at most | applies where |", "|---|---|---|"]
    for doubt in DOUBTS:
        words = " ".join((inspect.getdoc(doubt.applies) or "").split())
        lines.append(f"| `{doubt.name}` | {doubt.cap.name.lower()} | {words.rstrip('.')} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table as the rows give it."""
    before, _, rest = page.partition(_BEGIN)
    return before + _BEGIN + table() + _END + rest.partition(_END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
