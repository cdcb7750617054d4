"""How good the answers of `tools.chaos` are: the first one in the job's log, and the last one."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hangscope.diagnosis.model import Diagnosis
from tools.chaos_faults import CALLS, FAULTS, HEALTHY, Draw

BAR_PERCENT = 98.0
"""Of the decidable runs, for the first and for the last answer alike."""
HALVES = ("skip-send", "skip-recv")
RIGHT = ("exact", "tie", "untold")


@dataclass(frozen=True, slots=True)
class Answer:
    """What HangScope said at one time."""

    verdict: str = "healthy"
    culprits: tuple[int, ...] = ()
    confidence: str = ""
    summary: str = ""
    certain: tuple[int, ...] = ()
    """All ranks that some finding accuses as certain."""

    @property
    def accused(self) -> frozenset[int]:
        """The culprits, unless it says that it cannot tell them from others."""
        return frozenset() if self.confidence == "ambiguous" else frozenset(self.culprits)


@dataclass(slots=True)
class Result:
    """Outcome of one run. ``live``: what the job's log said, one after the other."""

    draw: Draw
    live: list[Answer] = field(default_factory=list)
    last: Answer = Answer()
    said_after_s: float | None = None
    ended: bool = False

    @property
    def first(self) -> Answer:
        """The first answer."""
        return self.live[0] if self.live else Answer()

    @property
    def score(self) -> str:
        """Score of the first answer; see `score`."""
        return score(self.draw, self.first, ended=self.ended)

    @property
    def last_score(self) -> str:
        """Score of the analysis afterwards; see `score`."""
        return score(self.draw, self.last, ended=self.ended)

    @property
    def contradiction(self) -> str:
        """Two answers that accuse different ranks of one fault; empty if none do."""
        answers = [answer for answer in (*self.live, self.last) if answer.accused]
        for before, after in pairwise(answers):
            if not before.accused & after.accused:
                return f"{before.summary} | {after.summary}"
        return ""

    @property
    def innocents(self) -> tuple[int, ...]:
        """Ranks without a fault that some finding accuses as certain."""
        guilty = () if self.draw.fault in HEALTHY else (self.draw.rank,)
        certain = {rank for answer in (*self.live, self.last) for rank in answer.certain}
        return tuple(sorted(certain - set(guilty)))

    @property
    def problems(self) -> list[str]:
        """What is wrong with the answers, one line each."""
        lines = []
        if self.score not in RIGHT:
            lines.append(f"first {self.score}: {_words(self.first)}")
        if self.last_score not in RIGHT:
            lines.append(f"last {self.last_score}: {_words(self.last)}")
        if self.contradiction:
            lines.append(f"contradiction: {self.contradiction}")
        if self.innocents:
            lines.append(f"innocent but certain: {self.innocents}")
        return lines


def answer_of(diagnosis: Diagnosis) -> Answer:
    """The analysis of what a run has left, for scoring."""
    certain = {
        rank
        for finding in diagnosis.findings
        if finding.confidence.value == "certain"
        for rank in finding.culprits
    }
    return Answer(
        diagnosis.verdict.value,
        tuple(sorted(diagnosis.culprits)),
        diagnosis.confidence.value,
        diagnosis.summary,
        tuple(sorted(certain)),
    )


def score(truth: Draw, answer: Answer, *, ended: bool = False) -> str:
    """Compare one answer with the truth.

    ``exact``; ``tie``: it cannot be decided, and both sides are named as such; ``untold``: nothing
    is said, and nothing tells the fault from none; ``wrong-verdict``, ``wrong-rank``, ``silent`` or
    ``false-alarm``. ``ended``: all processes have.
    """
    if truth.fault in HEALTHY:
        return "exact" if answer.verdict == "healthy" else "false-alarm"
    # SIGTERM to one and at once, from the launcher, to all others looks like SIGTERM to all.
    told_alike = truth.fault == "term" and truth.kill_on_failure and ended
    if told_alike and not answer.culprits and answer.verdict in ("healthy", "inconclusive"):
        return "untold"
    if answer.verdict == "healthy":
        return "silent"
    right_verdict = answer.verdict in FAULTS[truth.fault]
    if answer.culprits == (truth.rank,):
        return "exact" if right_verdict else "wrong-verdict"
    both = truth.rank in answer.culprits and len(answer.culprits) > 1
    undecidable = truth.fault in (*CALLS, *HALVES)
    # Two stages wait for each other, whichever omitted its half, so both are on the cycle.
    cycle = truth.fault in HALVES and answer.verdict == "deadlock_cycle"
    told = answer.confidence == "ambiguous" or (cycle and len(answer.culprits) == 2)
    return "tie" if right_verdict and both and undecidable and told else "wrong-rank"


def share(results: Sequence[Result], last: bool) -> float:
    """Percentage of the decidable runs with a fault whose answer is exact; 100 of none."""
    scores = [r.last_score if last else r.score for r in _faulty(results)]
    decidable = [one for one in scores if one not in ("tie", "untold")]
    return 100 * decidable.count("exact") / len(decidable) if decidable else 100.0


def below_bar(results: Sequence[Result]) -> list[str]:
    """Why these runs are not good enough, one line each."""
    lines = [
        f"{which} answer: {share(results, last):.1f} % exact, not {BAR_PERCENT:g} %"
        for which, last in (("first", False), ("last", True))
        if share(results, last) < BAR_PERCENT
    ]
    for what, count in (
        ("false alarms", sum("false-alarm" in (r.score, r.last_score) for r in results)),
        ("innocents accused as certain", sum(bool(r.innocents) for r in results)),
        ("contradictions", sum(bool(r.contradiction) for r in results)),
    ):
        if count:
            lines.append(f"{what}: {count}")
    return lines


def table(results: Sequence[Result]) -> str:
    """The score by fault, as Markdown."""
    by_fault: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_fault[result.draw.fault].append(result)
    lines = [
        "| fault | runs | rank and verdict right | both sides named (tie) | rank right only "
        "| wrong or silent | last answer wrong | median s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(fault, by_fault[fault]) for fault in FAULTS if fault in by_fault]
    lines.append(_row("**all faults**", _faulty(results)))
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> str:
    """The main figures, one per line."""
    faulty = _faulty(results)
    healthy = [r for r in results if r.draw.fault in HEALTHY]
    alarms = sum("false-alarm" in (r.score, r.last_score) for r in healthy)
    times = [r.said_after_s for r in faulty if r.said_after_s is not None]
    worlds = sorted({r.draw.world for r in results})
    lines = [
        f"- {len(results)} runs, {worlds[0]} to {worlds[-1]} ranks",
        f"- first answer: {_figures([r.score for r in faulty])}",
        f"- last answer: {_figures([r.last_score for r in faulty])}",
        f"- contradictions between answers: {sum(bool(r.contradiction) for r in results)}",
        f"- runs with an innocent accused as certain: {sum(bool(r.innocents) for r in results)}",
        f"- false alarms: {alarms} of {len(healthy)} healthy runs",
    ]
    if times:
        lines.append(
            f"- stall to printed verdict: median {statistics.median(times):.1f} s, "
            f"longest {max(times):.1f} s"
        )
    return "\n".join(lines)


def _figures(scores: Sequence[str]) -> str:
    count = Counter(scores)
    decidable = len(scores) - count["tie"] - count["untold"]
    named = count["exact"] + count["wrong-verdict"]
    told = f"exactly the injected rank in {named} of {decidable}, with the verdict in"
    ties = f"ties with both sides named {count['tie']}, nothing told {count['untold']}"
    return f"{told} {count['exact']} ({100 * count['exact'] / max(1, decidable):.1f} %); {ties}"


def _row(name: str, results: Sequence[Result]) -> str:
    count = Counter(r.score for r in results)
    last = sum(r.last_score not in RIGHT for r in results)
    times = [r.said_after_s for r in results if r.said_after_s is not None]
    median = f"{statistics.median(times):.1f}" if times else ""
    bad = count["wrong-rank"] + count["silent"] + count["false-alarm"]
    return (
        f"| {name} | {len(results)} | {count['exact']} | {count['tie']} | "
        f"{count['wrong-verdict']} | {bad} | {last} | {median} |"
    )


def _faulty(results: Sequence[Result]) -> list[Result]:
    return [r for r in results if r.draw.fault not in HEALTHY]


def _words(answer: Answer) -> str:
    return f"{answer.verdict} {answer.culprits} {answer.confidence}: {answer.summary}"
