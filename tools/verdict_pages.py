"""Writes a page per verdict from the recorded hangs: ``python -m tools.verdict_pages``.

Every report, sentence and piece of advice on these pages is what `hangscope analyze` says today of
a fixture. Only what a verdict means is written here.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis, Finding, Verdict
from hangscope.replay.fixture import Fixture, find_fixtures, load_fixture
from hangscope.replay.observed import read_dump_time
from hangscope.replay.verify import diagnose_fixture, report_text
from hangscope.trace.load import load_trace

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "verdicts"
_MOST_ROWS = 14
_PLACE = re.compile(r"look at .*?\(pid \d+\)|(?:compare )?\S+\.py:\d+(?: in \S+)?")
"""Where something is, which two pieces of advice may differ in and be the same."""

MEANINGS = {
    Verdict.HEALTHY: "Every rank known to exist has ended well, or goes on: nobody has waited for "
    "longer than usual, and nothing that was issued is incompatible.",
    Verdict.COLLECTIVE_MISMATCH: "Members of a group issued different operations at one number of "
    "the group. Neither can complete with the other; some backends hang, some return garbage.",
    Verdict.SHAPE_MISMATCH: "Members issued the same operation with element counts that cannot go "
    "together. Most backends do not check this: they wait for bytes that never come, or read past "
    "what was sent.",
    Verdict.DTYPE_MISMATCH: "Members issued the same operation with different data types. Counts "
    "in bytes then differ, which hangs, or the bytes are taken for other numbers, which does not.",
    Verdict.ARGUMENT_MISMATCH: "Members issued the same operation with another argument that must "
    "agree: the root, the reduce operation, a tag; or they disagree on the world itself.",
    Verdict.MISSING_RANK: "A rank is alive and never issued the operation that the others wait "
    "for. It is busy, asleep, stopped, held up by a lock, or it took another branch.",
    Verdict.RANK_CRASHED: "A rank ended by an exception, a signal or a status other than 0 before "
    "the others' operation. Their hang, and most of their errors, are symptoms.",
    Verdict.RANK_EXITED: "A rank ended with status 0 while the others still expected it: it had "
    "fewer steps, or took a way out that the others did not take.",
    Verdict.RANK_LOST: "A rank is gone or silent, and nothing on record says how: its host, its "
    "network or its container, or a signal that nobody saw.",
    Verdict.DEADLOCK_CYCLE: "Ranks wait for each other in a circle: two groups used in opposite "
    "orders, sends and receives that all block, a lock on one side and a collective on the other.",
    Verdict.P2P_UNMATCHED: "A send or receive has no partner: the other half was never issued, has "
    "another tag, or went to another rank.",
    Verdict.STUCK_COLLECTIVE: "Every member has issued the operation and it does not complete. The "
    "network, a device or the library is stuck, not the program.",
    Verdict.INCONCLUSIVE: "What is on record does not decide it. The report says what is missing "
    "and where to get it; a wrong name would be worse than none.",
    Verdict.QUIESCENT: "Nobody waits in a recorded operation, and nobody works either: the job "
    "stands still in what leaves no record, or it has not begun.",
}
"""What each verdict says about a job."""

_EXAMPLES = {
    Verdict.MISSING_RANK: "loader-asleep",
    Verdict.RANK_CRASHED: "d20-exception",
    Verdict.COLLECTIVE_MISMATCH: "d19-operation",
    Verdict.HEALTHY: "healthy-ddp-running",
    Verdict.DEADLOCK_CYCLE: "order-inversion",
}
"""Fixtures whose reports are shown; of other verdicts, the first."""


class Judged(NamedTuple):
    """A fixture and what is said of it."""

    name: str
    story: str
    diagnosis: Diagnosis


def write(folder: Path = PAGES) -> None:
    """Write all pages and their index."""
    judged = [_judged(load_fixture(path)) for path in find_fixtures([ROOT / "fixtures"])]
    judged.append(_one_rank_of_many())
    folder.mkdir(parents=True, exist_ok=True)
    for verdict in Verdict:
        own = [each for each in judged if each.diagnosis.verdict is verdict]
        write_changed(folder / f"{verdict.value}.md", page(verdict, own))
    write_changed(folder / "index.md", _index())


def write_changed(path: Path, text: str) -> None:
    """Write a page if it says something else by now: others may be reading it."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def page(verdict: Verdict, judged: Sequence[Judged]) -> str:
    """The page of one verdict, from the fixtures that get it."""
    wanted = _EXAMPLES.get(verdict)
    shown = next((each for each in judged if each.name == wanted), judged[0] if judged else None)
    parts = [f"# {verdict.value}", MEANINGS[verdict]]
    if shown is not None:
        parts += [
            "## What it looks like",
            _story(shown),
            f"```text\n{_report(shown.diagnosis)}\n```",
        ]
    if rows := list(_rows(judged)):
        parts += [
            "## Typical causes, and what to do",
            "From the recorded hangs in `fixtures/`; `hangscope analyze fixtures/NAME/dumps` "
            "shows each whole.",
            "| fixture | what HangScope says | why | what to do |\n|---|---|---|---|\n"
            + "\n".join(rows),
        ]
    return "\n\n".join(parts) + "\n"


def _story(judged: Judged) -> str:
    told = f"{judged.story[:1].upper()}{judged.story[1:]}" or "A recorded job"
    return f"{told} (`fixtures/{judged.name}`):" if judged.name else f"{told}:"


def _report(diagnosis: Diagnosis) -> str:
    lines = report_text(diagnosis).rstrip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _rows(judged: Iterable[Judged]) -> Iterable[str]:
    """One row for each piece of advice, at most `_MOST_ROWS`."""
    advice: dict[str, tuple[str, Finding]] = {}
    for each in judged:
        finding = each.diagnosis.findings[0] if each.diagnosis.findings else None
        if finding is not None and finding.fix and each.name:
            advice.setdefault(_PLACE.sub("", finding.fix), (each.name, finding))
    for name, finding in list(advice.values())[:_MOST_ROWS]:
        told = (f"`{name}`", finding.headline, finding.why, finding.fix)
        yield "| " + " | ".join(_cell(text) for text in told) + " |"


def _cell(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
    return escaped if escaped.startswith("`") else escaped.replace("<", "&lt;").replace("*", "\\*")


def _judged(fixture: Fixture) -> Judged:
    _, diagnosis = diagnose_fixture(fixture)
    return Judged(fixture.path.name, fixture.expected.story or "", diagnosis)


def _one_rank_of_many() -> Judged:
    """A job of which one dump has been kept: nothing tells what the others did."""
    with tempfile.TemporaryDirectory() as folder:
        kept = next((ROOT / "fixtures" / "native-operation" / "dumps").glob("*0*"))
        copy = Path(shutil.copy(kept, folder))
        os.utime(copy, (read_dump_time(kept.parent) / 1e9,) * 2)
        return Judged(
            "", "One dump of a job of four ranks is all there is", diagnose(load_trace([copy]))
        )


def _index() -> str:
    rows = "\n".join(f"| [{v.value}]({v.value}.md) | {MEANINGS[v]} |" for v in Verdict)
    tree = "\n".join(verdict.value for verdict in Verdict)
    return (
        "# Verdicts\n\nEvery diagnosis has one of these; each page shows a real report, typical "
        "causes, and what to do. `make pages` writes them from the recorded hangs.\n\n"
        f"| verdict | it says |\n|---|---|\n{rows}\n\n"
        f"```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )


if __name__ == "__main__":
    write()
