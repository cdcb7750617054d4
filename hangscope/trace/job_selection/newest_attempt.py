"""Keeps the newest attempt where a directory holds several, and reports the others.

Rings and journals state their run and attempt. Dumps do not: two dumps of the same rank that end at
different times cannot be from one attempt, so their folders are kept apart.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hangscope.trace import formats
from hangscope.trace.files.file_names import attempt_of
from hangscope.trace.job_selection.concurrent_jobs import keep_one_job
from hangscope.trace.job_selection.duplicate_ranks import (
    duplicate_rank_claims,
    find_duplicate_ranks,
)
from hangscope.trace.job_selection.incarnations import (
    in_newest_incarnation,
    in_same_incarnation,
    runs_of_same_job,
)
from hangscope.trace.job_selection.processes import RankProcess, last_seen_ns, process_of
from hangscope.trace.job_selection.ring_ranks import other_world_note, with_assigned_ranks
from hangscope.trace.job_selection.stale_dumps import drop_dumps_older_than_rings
from hangscope.trace.model import NONE, Fragment

_MOST_NOTES = 4
"""Attempts that are listed one by one; a folder of all runs holds dozens."""
_SAME_MOMENT_NS = 60 * 10**9
"""Two dumps of one rank whose last operations are closer than this are copies from one attempt."""


def keep_newest(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Return the fragments of the newest attempt, and one warning per attempt left out."""
    all_named = _with_one_run_id([f for f in fragments if _attempt_of(f) is not None])
    named = with_assigned_ranks(all_named)
    dumps = [f for f in fragments if _is_dump(f) and _attempt_of(f) is None]
    others = [f for f in fragments if not _is_dump(f) and _attempt_of(f) is None]
    kept_named, left_named = _newest_run(named)
    kept_named, left_incarnations = _newest_incarnation(kept_named)
    kept_named += _with_other_attempt_number(kept_named, named)
    gone = _folders(named) - _folders(kept_named)
    dumps = [f for f in dumps if _folder_of(f) not in gone]
    others = [f for f in others if _folder_of(f) not in gone]
    dumps, left_behind = drop_dumps_older_than_rings(dumps, kept_named)
    dumps, old_dumps = _newest_attempt_folder(dumps, "dumps")
    dumps, other_jobs = keep_one_job(dumps)
    kept_dumps, left_dumps = _newest_folder(dumps)
    kept_logs, left_logs = _newest_attempt_folder(others, "logs")
    if kept_named or kept_dumps:
        kept_logs, left_words = _without_earlier_attempts(kept_logs)
        left_logs += left_words
    notes = [
        *_notes_on_other_worlds(all_named, named),
        *left_named,
        *left_incarnations,
        *left_behind,
        *old_dumps,
        *other_jobs,
        *left_dumps,
        *left_logs,
    ]
    return [*kept_named, *kept_dumps, *kept_logs], notes


def _notes_on_other_worlds(all_named: Sequence[Fragment], named: Sequence[Fragment]) -> list[str]:
    """A note on each other job that was started beside the selected one."""
    kept = {f.facts.process for f in named if f.source.format == formats.RING}
    left: dict[tuple[str, str], list[Fragment]] = defaultdict(list)
    for f in all_named:
        if f.source.format == formats.RING and f.facts.declared and f.facts.process not in kept:
            left[_folder_of(f), f.facts.rendezvous or ""].append(f)
    return [
        f"{folder}: {other_world_note(at, len(those), _ring_of_helpers(those, kept))}"
        for (folder, at), those in sorted(left.items())
    ]


def _ring_of_helpers(world: Sequence[Fragment], ranks: Collection[tuple[str, int]]) -> str:
    """The name of one ring in a world that these ranks started; empty if they started none."""
    started = (f for f in world if (f.facts.process[0], f.facts.parent_pid) in ranks)
    return next((Path(f.source.path).name for f in started), "")


def _folder_of(fragment: Fragment) -> str:
    return os.path.dirname(fragment.source.path) or "."


def _folders(fragments: Sequence[Fragment]) -> set[str]:
    return {_folder_of(fragment) for fragment in fragments}


def _is_dump(fragment: Fragment) -> bool:
    return fragment.source.format in formats.DUMPS


def _attempt_of(fragment: Fragment) -> tuple[str, int] | None:
    if fragment.facts.run_id is None and fragment.facts.attempt is None:
        return None
    return fragment.facts.run_id or "", fragment.facts.attempt or 0


def _with_one_run_id(named: list[Fragment]) -> list[Fragment]:
    """The fragments, with one run id where several launchers named the same job differently."""
    rings = [f for f in named if f.source.format == formats.RING]
    if len({f.facts.run_id for f in rings}) < 2:
        return named
    main = max(rings, key=last_seen_ns).facts.run_id or ""
    runs: dict[str, list[RankProcess]] = defaultdict(list)
    for f in rings:
        runs[f.facts.run_id or ""].append(process_of(f))
    parts = set(runs_of_same_job(runs, main)) - {main}
    return [
        replace(f, facts=replace(f.facts, run_id=main)) if (f.facts.run_id or "") in parts else f
        for f in named
    ]


def _newest_run(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """The newest attempt of the newest run, and notes on the others."""
    attempts: dict[tuple[str, int], list[Fragment]] = {}
    for fragment in fragments:
        own = _attempt_of(fragment)
        if own is not None:
            attempts.setdefault(own, []).append(fragment)
    if len(attempts) <= 1:
        return list(fragments), []
    newest_of_run: dict[str, int] = {}
    for (run, _), members in attempts.items():
        latest = max(last_seen_ns(f) for f in members)
        newest_of_run[run] = max(newest_of_run.get(run, 0), latest)
    run = max(newest_of_run, key=lambda name: (newest_of_run[name], name))
    attempt = max(number for name, number in attempts if name == run)
    kept = attempts.pop((run, attempt))
    if len(attempts) > _MOST_NOTES:
        found = f"{len(attempts)} other runs and attempts were found beside it"
        return kept, [f"this report is about run {run} attempt {attempt}; {found}"]
    notes = []
    for (name, number), members in sorted(attempts.items()):
        ranks = len({f.facts.rank for f in members if f.facts.rank != NONE})
        what = f"attempt {number}" if name == run else f"run {name or '?'} attempt {number}"
        notes.append(
            f"{_folder_of(members[0])}: also holds {what} of {_ranks(ranks)}; "
            f"this report is about {f'run {run} ' if name != run else ''}attempt {attempt}"
        )
    return kept, notes


def _with_other_attempt_number(
    kept: Sequence[Fragment], named: Sequence[Fragment]
) -> list[Fragment]:
    """Fragments of the selected incarnation whose node counts it as a different attempt."""
    runs = {f.facts.run_id for f in kept}
    ids = set(map(id, kept))
    rest = [f for f in named if id(f) not in ids and f.facts.run_id in runs]
    others = [f for f in rest if f.source.format == formats.RING]
    if not others:
        return []
    own = [process_of(f) for f in kept if f.source.format == formats.RING]
    flags = in_same_incarnation(own, [process_of(f) for f in others])
    newest: dict[int, Fragment] = {}
    for fragment, is_one in zip(others, flags, strict=True):
        known = newest.get(fragment.facts.rank)
        if is_one and (known is None or known.facts.started_ns < fragment.facts.started_ns):
            newest[fragment.facts.rank] = fragment
    processes = {(f.facts.rank, f.facts.pid) for f in newest.values()}
    return [*newest.values()] + [
        f
        for f in rest
        if f.source.format == formats.JOURNAL and (f.facts.rank, f.facts.pid) in processes
    ]


def _newest_incarnation(fragments: list[Fragment]) -> tuple[list[Fragment], list[str]]:
    """The newest of several jobs with one run id; journal entries go with their processes."""
    rings = [f for f in fragments if f.source.format == formats.RING and f.facts.started_ns]
    if len({f.facts.rank for f in rings}) == len(rings):
        return fragments, []  # no rank began twice; the rest would scan all records
    present = [process_of(f) for f in rings]
    old = [f for f, kept in zip(rings, in_newest_incarnation(present), strict=True) if not kept]
    if not old:
        return fragments, []
    doubled = find_duplicate_ranks(present)
    processes = {(f.facts.rank, f.facts.pid) for f in old}
    ids = set(map(id, old))
    kept = [
        f
        for f in fragments
        if id(f) not in ids
        and (f.source.format == formats.RING or (f.facts.rank, f.facts.pid) not in processes)
    ]
    if doubled and kept:
        kept[0] = replace(kept[0], claims=(*kept[0].claims, *duplicate_rank_claims(doubled)))
    count: dict[str, set[int]] = {}
    known = {pair.rank for pair in doubled}
    for fragment in old:
        if fragment.facts.rank not in known:
            count.setdefault(_folder_of(fragment), set()).add(fragment.facts.rank)
    return kept, [pair.text for pair in doubled] + [
        f"{folder}: also holds an earlier job of the same name, {_ranks(len(ranks))}; ignored"
        for folder, ranks in sorted(count.items())
    ]


def _newest_attempt_folder(
    fragments: Sequence[Fragment], what: str
) -> tuple[list[Fragment], list[str]]:
    """Only the logs or dumps below the ``attempt_<n>`` folders with the highest number."""
    numbers = [attempt_of(Path(f.source.path)) for f in fragments]
    known = [n for n in numbers if n is not None]
    if len(set(known)) < 2:
        return list(fragments), []
    newest = max(known)
    old: dict[str, set[int]] = {}
    for fragment, number in zip(fragments, numbers, strict=True):
        if number is not None and number < newest:
            old.setdefault(_folder_of(fragment), set()).add(fragment.facts.rank)
    notes = [
        f"{folder}: holds older {what} of {_ranks(len(ranks))}; ignored as another attempt"
        for folder, ranks in sorted(old.items())
    ]
    kept = [f for f, n in zip(fragments, numbers, strict=True) if n is None or n == newest]
    return kept, notes


def _without_earlier_attempts(logs: list[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Drop what logs say about an earlier attempt; the records are of the newest one."""
    old = sorted({f.source.path for f in logs if f.of_earlier_attempt})
    notes = [
        f"{path}: says nothing of its newest attempt; what it says of an earlier one is ignored"
        for path in old
    ]
    return [f for f in logs if not f.of_earlier_attempt], notes


@dataclass(slots=True)
class _Folder:
    path: str
    fragments: list[Fragment] = field(default_factory=list)

    def times(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for fragment in self.fragments:
            rank = fragment.facts.rank
            if rank != NONE:
                found[rank] = max(found.get(rank, 0), last_seen_ns(fragment))
        return found

    def recorded(self) -> dict[int, int]:
        """As `times`, but a dump without records is no newer than the newest dump that has some.

        An empty dump has only its file date, which copying renews.
        """
        last_ns = [last_seen_ns(f) for f in self.fragments if len(f.records)]
        if not last_ns:
            return self.times()
        return {rank: min(at, max(last_ns)) for rank, at in self.times().items()}


def _newest_folder(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Folders of dumps that can be of one attempt: no rank twice, unless at the same moment."""
    folders: dict[str, _Folder] = {}
    for fragment in fragments:
        path = _folder_of(fragment)
        folders.setdefault(path, _Folder(path)).fragments.append(fragment)
    kept: list[Fragment] = []
    notes: list[str] = []
    taken: dict[int, int] = {}
    times_of = {folder.path: folder.recorded() for folder in folders.values()}
    newest_first = sorted(
        folders.values(), key=lambda f: (-max(times_of[f.path].values(), default=0), f.path)
    )
    left: list[_Folder] = []
    for folder in newest_first:
        times = times_of[folder.path]
        clash = [
            rank
            for rank, at in times.items()
            if rank in taken and abs(taken[rank] - at) > _SAME_MOMENT_NS
        ]
        if clash:
            left.append(folder)
            continue
        kept.extend(_one_per_rank(folder, notes))
        taken.update(times)
    notes.extend(
        f"{folder.path}: holds older dumps of {_ranks(len(folder.times()))}; ignored as another "
        "attempt"
        for folder in sorted(left, key=lambda f: f.path)
    )
    return kept, notes


def _one_per_rank(folder: _Folder, notes: list[str]) -> list[Fragment]:
    """Within a folder, drop older dumps of a rank but keep copies from the same moment."""
    newest = folder.times()
    kept = []
    for fragment in folder.fragments:
        at = newest.get(fragment.facts.rank)
        if at is not None and at - last_seen_ns(fragment) > _SAME_MOMENT_NS:
            notes.append(
                f"{fragment.source.path}: an older dump of rank {fragment.facts.rank}; ignored"
            )
        else:
            kept.append(fragment)
    return kept


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
