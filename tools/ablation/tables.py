"""The tables, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hangscope.diagnosis.model import Confidence
from tools.ablation.measure import Answer, Baseline, Change
from tools.simulator.outcomes import CRASH, EXACT, PART, UNDECIDED, WRONG

_RANK = {EXACT: 4, PART: 3, UNDECIDED: 2, WRONG: 1, CRASH: 0}


def scores(base: Baseline) -> str:
    """One row per corpus: how its answers are judged."""
    lines = [
        "| corpus | cases | exact | in part | undecided | wrong | certain and wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    for corpus, answers in base.answers.items():
        count = Counter(a.outcome for a in answers)
        lines.append(
            f"| {corpus} | {len(answers)} | {count[EXACT]} | {count[PART]} | {count[UNDECIDED]} "
            f"| {count[WRONG] + count[CRASH]} | {sum(a.certain_wrong for a in answers)} |"
        )
    return "\n".join(lines)


def calibration(base: Baseline) -> str:
    """What a confidence is worth: how often an answer that names anybody is exact."""
    lines = [
        "| corpus | certain | of them exact | likely | of them exact | ambiguous | of them exact "
        "| exact answers that are not certain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = {**base.answers, "all": [a for answers in base.answers.values() for a in answers]}
    for corpus, answers in rows.items():
        named = [a for a in answers if a.culprits]
        cells = []
        for confidence in Confidence:
            given = [a for a in named if a.confidence == confidence.value]
            exact = sum(a.outcome == EXACT for a in given)
            cells += [str(len(given)), f"{exact / len(given):.1%}" if given else "—"]
        right = [a for a in named if a.outcome == EXACT]
        demoted = sum(a.confidence != Confidence.CERTAIN.value for a in right)
        share = f"{demoted} of {len(right)}" if right else "—"
        lines.append(f"| {corpus} | {' | '.join(cells)} | {share} |")
    return "\n".join(lines)


def effect(change: Change) -> str:
    """In one word what a change is: ``lost``, ``gained``, ``weaker``, ``stronger``, ``other`` or
    ``words``."""
    before, after = change.before, change.after
    if before.certain_wrong != after.certain_wrong:
        return "lost" if after.certain_wrong else "gained"
    if before.outcome != after.outcome:
        return "lost" if _RANK[after.outcome] < _RANK[before.outcome] else "gained"
    if before.without_text == after.without_text:
        return "words"
    if (before.verdict, before.culprits) == (after.verdict, after.culprits):
        order = [c.value for c in Confidence]
        weaker = order.index(after.confidence) > order.index(before.confidence)
        return "weaker" if weaker else "stronger"
    return "other"


EFFECTS = ("lost", "gained", "weaker", "stronger", "other", "words")


def ablations(rows: Sequence[tuple[str, int, Sequence[Change]]]) -> str:
    """One row per item: in how many cases it spoke, and what changed without it."""
    lines = [
        f"| without | speaks in | {' | '.join(EFFECTS)} | where |",
        f"|---|---|{'---|' * len(EFFECTS)}---|",
    ]
    for name, tried, changes in rows:
        count = Counter(effect(c) for c in changes)
        cells = " | ".join(str(count[e] or "") for e in EFFECTS)
        places = Counter(c.corpus for c in changes if effect(c) != "words")
        where = ", ".join(f"{corpus} {n}" for corpus, n in places.items())
        lines.append(f"| `{name}` | {tried} | {cells} | {where} |")
    return "\n".join(lines)


PAGE = Path(__file__).parents[2] / "docs" / "ablation.md"
_BEGIN, _END = "<!-- made by the tool -->\n", "<!-- end -->\n"


def page(rows: Sequence[tuple[str, int, Sequence[Change]]], corpora: Sequence[str]) -> str:
    """One row per function without which an answer changes: how many become worse, and how many
    change in each corpus. What changes sentences alone has no row."""
    lines = [f"| without | worse | {' | '.join(corpora)} |", f"|---|---|{'---|' * len(corpora)}"]
    for name, _, changes in rows:
        places = Counter(c.corpus for c in changes if effect(c) != "words")
        worse = sum(effect(c) in ("lost", "weaker") for c in changes)
        if places:
            cells = " | ".join(str(places[corpus] or "") for corpus in corpora)
            lines.append(f"| `{name}` | {worse or ''} | {cells} |")
    return "\n".join(lines) + "\n"


def write_page(table: str) -> None:
    """Put the table into its page."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    PAGE.write_text(before + _BEGIN + table + _END + rest.partition(_END)[2])


def shown(change: Change) -> str:
    """One changed answer in a line."""
    return (
        f"  {effect(change)} {change.corpus} {change.case}: {_short(change.before)} -> "
        f"{_short(change.after)}"
    )


def _short(answer: Answer) -> str:
    wrong = "!" if answer.certain_wrong else ""
    return f"{answer.outcome}{wrong} {answer.verdict} {list(answer.culprits)} {answer.confidence}"
