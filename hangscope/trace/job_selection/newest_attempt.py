"""One directory may hold several lives of a job: keep the newest, name the others.

Rings and journals say which run and attempt they belong to. Dumps do not: two that claim the same
rank and end at different times cannot come from one life, so their folders are kept apart.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hangscope.trace import formats
from hangscope.trace.files.file_names import attempt_of
from hangscope.trace.job_selection.concurrent_jobs import of_one_job
from hangscope.trace.job_selection.duplicate_ranks import claims_of, twins
from hangscope.trace.job_selection.incarnations import Member, beside, of_newest_life
from hangscope.trace.job_selection.ring_ranks import (
    last_sign,
    other_world,
    start_of,
    with_ranks_of_rings,
)
from hangscope.trace.job_selection.split_runs import parts_of_job, run_of
from hangscope.trace.job_selection.stale_dumps import since_their_rings_began
from hangscope.trace.model import NONE, Fragment

_MOST_NOTES = 4
"""Lives that are mentioned one by one; a folder of all runs holds dozens."""
_SAME_MOMENT_NS = 60 * 10**9
"""Two dumps of one rank whose last operations are closer than this are twins of one life."""


def keep_newest(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """The fragments of the newest life, and one warning line per life that was left out."""
    all_named = _under_one_name([f for f in fragments if _life(f) is not None])
    named = with_ranks_of_rings(all_named)
    dumps = [f for f in fragments if _is_dump(f) and _life(f) is None]
    others = [f for f in fragments if not _is_dump(f) and _life(f) is None]
    kept_named, left_named = _newest_run(named)
    kept_named, left_lives = _newest_life(kept_named)
    kept_named += _of_other_numbers(kept_named, named)
    gone = _folders(named) - _folders(kept_named)
    dumps = [f for f in dumps if _folder_of(f) not in gone]
    others = [f for f in others if _folder_of(f) not in gone]
    dumps, left_behind = since_their_rings_began(dumps, kept_named)
    dumps, old_dumps = _newest_numbered(dumps, "dumps")
    dumps, other_jobs = of_one_job(dumps)
    kept_dumps, left_dumps = _newest_folder(dumps)
    kept_logs, left_logs = _newest_numbered(others, "logs")
    if kept_named or kept_dumps:
        kept_logs, left_words = _without_words_of_others(kept_logs)
        left_logs += left_words
    notes = [
        *_of_other_worlds(all_named, named),
        *left_named,
        *left_lives,
        *left_behind,
        *old_dumps,
        *other_jobs,
        *left_dumps,
        *left_logs,
    ]
    return [*kept_named, *kept_dumps, *kept_logs], notes


def _of_other_worlds(all_named: Sequence[Fragment], named: Sequence[Fragment]) -> list[str]:
    """A line for each job that was started beside the one that is kept."""
    kept = {f.facts.process for f in named if f.source.format == formats.RING}
    left: dict[tuple[str, str], list[Fragment]] = defaultdict(list)
    for f in all_named:
        if f.source.format == formats.RING and f.facts.declared and f.facts.process not in kept:
            left[_folder_of(f), f.facts.rendezvous or ""].append(f)
    return [
        f"{folder}: {other_world(at, len(those), _helpers(those, kept))}"
        for (folder, at), those in sorted(left.items())
    ]


def _helpers(world: Sequence[Fragment], ranks: Collection[tuple[str, int]]) -> str:
    """The name of one ring of a world that these ranks have started; empty where they have not."""
    started = (f for f in world if (f.facts.process[0], f.facts.parent_pid) in ranks)
    return next((Path(f.source.path).name for f in started), "")


def _folder_of(fragment: Fragment) -> str:
    return os.path.dirname(fragment.source.path) or "."


def _folders(fragments: Sequence[Fragment]) -> set[str]:
    return {_folder_of(fragment) for fragment in fragments}


def _is_dump(fragment: Fragment) -> bool:
    return fragment.source.format in formats.DUMPS


def _life(fragment: Fragment) -> tuple[str, int] | None:
    if fragment.facts.run_id is None and fragment.facts.attempt is None:
        return None
    return fragment.facts.run_id or "", fragment.facts.attempt or 0


def _under_one_name(named: list[Fragment]) -> list[Fragment]:
    """The fragments, those of one job under one run, whatever its launchers called it."""
    rings = [f for f in named if f.source.format == formats.RING]
    if len({f.facts.run_id for f in rings}) < 2:
        return named
    signs = {id(f): last_sign(f) for f in rings}
    main = max(rings, key=lambda f: signs[id(f)]).facts.run_id or ""
    runs = {
        name: run_of(
            [
                (f.facts.rank, f.facts.world_size or 0, f.facts.started_ns, signs[id(f)])
                for f in rings
                if (f.facts.run_id or "") == name
            ]
        )
        for name in {f.facts.run_id or "" for f in rings}
    }
    parts = set(parts_of_job(runs, main)) - {main}
    return [
        replace(f, facts=replace(f.facts, run_id=main)) if (f.facts.run_id or "") in parts else f
        for f in named
    ]


def _newest_run(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Of the newest run the newest attempt."""
    lives: dict[tuple[str, int], list[Fragment]] = {}
    for fragment in fragments:
        life = _life(fragment)
        if life is not None:
            lives.setdefault(life, []).append(fragment)
    if len(lives) <= 1:
        return list(fragments), []
    newest_of_run: dict[str, int] = {}
    for (run, _), members in lives.items():
        latest = max(last_sign(f) for f in members)
        newest_of_run[run] = max(newest_of_run.get(run, 0), latest)
    run = max(newest_of_run, key=lambda name: (newest_of_run[name], name))
    attempt = max(number for name, number in lives if name == run)
    kept = lives.pop((run, attempt))
    if len(lives) > _MOST_NOTES:
        found = f"{len(lives)} other runs and attempts were found beside it"
        return kept, [f"this report is about run {run} attempt {attempt}; {found}"]
    notes = []
    for (name, number), members in sorted(lives.items()):
        ranks = len({f.facts.rank for f in members if f.facts.rank != NONE})
        what = f"attempt {number}" if name == run else f"run {name or '?'} attempt {number}"
        notes.append(
            f"{_folder_of(members[0])}: also holds {what} of {_ranks(ranks)}; "
            f"this report is about {f'run {run} ' if name != run else ''}attempt {attempt}"
        )
    return kept, notes


def _of_other_numbers(kept: Sequence[Fragment], named: Sequence[Fragment]) -> list[Fragment]:
    """Fragments of ranks whose node has another attempt number in the life that is kept."""
    runs = {f.facts.run_id for f in kept}
    ids = set(map(id, kept))
    rest = [f for f in named if id(f) not in ids and f.facts.run_id in runs]
    others = [f for f in rest if f.source.format == formats.RING]
    if not others:
        return []
    own = [_member(f) for f in kept if f.source.format == formats.RING]
    flags = beside(own, [_member(f) for f in others])
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


def _member(ring: Fragment) -> Member:
    return Member(start_of(ring), (ring.facts.process[0], ring.facts.parent_pid or 0))


def _newest_life(fragments: list[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Of several jobs of one name the newest; the others go with what was seen of them."""
    rings = [f for f in fragments if f.source.format == formats.RING and f.facts.started_ns]
    if len({f.facts.rank for f in rings}) == len(rings):
        return fragments, []  # nobody began twice; what follows looks at all records
    starts = [start_of(f) for f in rings]
    old = [f for f, kept in zip(rings, of_newest_life(starts), strict=True) if not kept]
    if not old:
        return fragments, []
    living = [s.process for s, f in zip(starts, rings, strict=True) if f.facts.alive]
    doubled = twins(starts, living)
    processes = {(f.facts.rank, f.facts.pid) for f in old}
    ids = set(map(id, old))
    kept = [
        f
        for f in fragments
        if id(f) not in ids
        and (f.source.format == formats.RING or (f.facts.rank, f.facts.pid) not in processes)
    ]
    if doubled and kept:
        kept[0] = replace(kept[0], claims=(*kept[0].claims, *claims_of(doubled)))
    count: dict[str, set[int]] = {}
    known = {pair.rank for pair in doubled}
    for fragment in old:
        if fragment.facts.rank not in known:
            count.setdefault(_folder_of(fragment), set()).add(fragment.facts.rank)
    return kept, [pair.text for pair in doubled] + [
        f"{folder}: also holds an earlier job of the same name, {_ranks(len(ranks))}; ignored"
        for folder, ranks in sorted(count.items())
    ]


def _newest_numbered(fragments: Sequence[Fragment], what: str) -> tuple[list[Fragment], list[str]]:
    """Logs or dumps below ``attempt_<n>`` folders: the highest number of them."""
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


def _without_words_of_others(logs: list[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Without what logs say of an earlier attempt: what was recorded is of the newest."""
    old = sorted({f.source.path for f in logs if f.of_earlier_life})
    notes = [
        f"{path}: says nothing of its newest attempt; what it says of an earlier one is ignored"
        for path in old
    ]
    return [f for f in logs if not f.of_earlier_life], notes


@dataclass(slots=True)
class _Folder:
    path: str
    fragments: list[Fragment] = field(default_factory=list)

    def times(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for fragment in self.fragments:
            rank = fragment.facts.rank
            if rank != NONE:
                found[rank] = max(found.get(rank, 0), last_sign(fragment))
        return found

    def recorded(self) -> dict[int, int]:
        """As `times`, but a dump without records is as old as the newest of those that have some.

        All it has is the date of its file, which copying renews.
        """
        told = [last_sign(f) for f in self.fragments if len(f.records)]
        if not told:
            return self.times()
        empty = {f.facts.rank for f in self.fragments if not len(f.records)}
        return {r: min(at, max(told)) if r in empty else at for r, at in self.times().items()}


def _newest_folder(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[str]]:
    """Folders of dumps that can be one life: no rank twice, unless at the same moment."""
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
    """Within one folder: twins stay, an older dump of the same rank goes."""
    newest = folder.times()
    kept = []
    for fragment in folder.fragments:
        at = newest.get(fragment.facts.rank)
        if at is not None and at - last_sign(fragment) > _SAME_MOMENT_NS:
            notes.append(
                f"{fragment.source.path}: an older dump of rank {fragment.facts.rank}; ignored"
            )
        else:
            kept.append(fragment)
    return kept


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
