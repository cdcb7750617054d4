"""Diagnoses every case, with everything switched on and with items switched off."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import hangscope.diagnosis.engine as engine
from hangscope.diagnosis.model import Diagnosis
from tools.ablation.corpora import Case
from tools.ablation.items import Item, switched_off, watched
from tools.simulator.outcomes import CRASH


class Answer(NamedTuple):
    """What the diagnosis says about one case; ``text`` stands for all of its sentences."""

    outcome: str
    certain_wrong: bool
    verdict: str
    culprits: tuple[int, ...]
    confidence: str
    text: int

    @property
    def without_text(self) -> tuple[object, ...]:
        return self[:-1]


@dataclass(frozen=True)
class Change:
    """What becomes of one case when items are switched off."""

    corpus: str
    case: str
    before: Answer
    after: Answer


class Work(NamedTuple):
    """One task of a worker: these items off, in these cases of a corpus."""

    items: tuple[int, ...]
    cases: tuple[tuple[str, int], ...]


_CASES: dict[str, list[Case]] = {}
_ITEMS: list[Item] = []
_HEARD: set[int] = set()
"""The items that had a say in the case at hand."""
_BEFORE: dict[str, list[Answer]] = {}
"""Set before the workers are forked, which so have every trace without reading it."""


def answer(case: Case) -> Answer:
    """The answer of the engine as it is now."""
    try:
        found = engine.diagnose(case.trace)
        outcome, certain_wrong = case.judge(found)
    except Exception as error:
        return Answer(CRASH, False, type(error).__name__, (), "", hash(str(error)))
    return Answer(
        outcome,
        certain_wrong,
        found.verdict.value,
        found.culprits,
        found.confidence.value,
        hash(_sentences(found)),
    )


def _sentences(found: Diagnosis) -> str:
    return repr((found.summary, found.findings, found.notes, found.warnings))


@dataclass(frozen=True)
class Baseline:
    """All answers, and for each item the cases in which it says anything."""

    answers: dict[str, list[Answer]]
    says: dict[int, list[tuple[str, int]]]
    cases: dict[str, list[Case]]
    items: list[Item]


def baseline(cases: dict[str, list[Case]], items: list[Item]) -> Baseline:
    """Diagnose every case once, and note which items have a say in it."""
    _CASES.clear()
    _CASES.update(cases)
    _ITEMS[:] = items
    tasks = [(corpus, number) for corpus, found in cases.items() for number in range(len(found))]
    answers: dict[str, list[Answer]] = {corpus: [] for corpus in cases}
    says: dict[int, list[tuple[str, int]]] = {}
    with watched(_ITEMS, _HEARD), multiprocessing.get_context("fork").Pool() as pool:
        for place, (one, heard) in zip(tasks, pool.imap(_first, tasks, chunksize=8), strict=True):
            answers[place[0]].append(one)
            for index in heard:
                says.setdefault(index, []).append(place)
    return Baseline(answers, says, cases, items)


def _first(task: tuple[str, int]) -> tuple[Answer, list[int]]:
    """The answer to a case, and the items that returned anything but their neutral answer."""
    _HEARD.clear()
    found = answer(_CASES[task[0]][task[1]])
    return found, sorted(_HEARD)


def without(
    base: Baseline, chosen: Iterable[Sequence[int]], most: int, seed: int
) -> Iterator[tuple[tuple[int, ...], int, list[Change]]]:
    """For each set of items: the items, the number of cases tried and the changed answers.

    Only cases in which an item of the set says anything are tried, at most ``most`` per corpus.
    """
    _BEFORE.clear()
    _BEFORE.update(base.answers)
    work = []
    for items in chosen:
        places = {place for index in items for place in base.says.get(index, ())}
        work.append(Work(tuple(items), tuple(_some(places, most, seed))))
    with multiprocessing.get_context("fork").Pool() as pool:
        for done, changes in pool.imap(_again, work, chunksize=1):
            yield done.items, len(done.cases), changes


def _some(places: Iterable[tuple[str, int]], most: int, seed: int) -> list[tuple[str, int]]:
    by_corpus: dict[str, list[tuple[str, int]]] = {}
    for place in sorted(places):
        by_corpus.setdefault(place[0], []).append(place)
    rng = random.Random(seed)
    return [
        place
        for found in by_corpus.values()
        for place in (found if len(found) <= most else sorted(rng.sample(found, most)))
    ]


def _again(work: Work) -> tuple[Work, list[Change]]:
    changes = []
    with switched_off([_ITEMS[index] for index in work.items]):
        for corpus, number in work.cases:
            case, before = _CASES[corpus][number], _BEFORE[corpus][number]
            after = answer(case)
            if after != before:
                changes.append(Change(corpus, case.name, before, after))
    return work, changes
