"""Merges the fragments of many sources into one Trace.

Groups are matched by name, members and epoch; tables are joined; what several sources say about one
rank is merged field by field. Nothing here reads a file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hangscope.trace import formats, operations
from hangscope.trace.flight_recorder.p2p import global_peer
from hangscope.trace.merging.facts import TRUST, merge_facts
from hangscope.trace.merging.groups import GroupMatcher, sizes_from_gathers
from hangscope.trace.merging.host_names import with_unique_host_names
from hangscope.trace.merging.records import (
    combine_rank,
    counters_of,
    discard_mixed_counters,
    merge_members,
    without_mixed_counters,
)
from hangscope.trace.model import (
    MAX_RANK,
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    Claim,
    Flag,
    Fragment,
    Group,
    RankFacts,
    Records,
    Signature,
    Source,
    Trace,
    UnrankedProcess,
    Unread,
    flagged,
)
from hangscope.trace.row_block import RowBlock
from hangscope.trace.stack_table import StackTable

DEFAULT_TIMEOUT_S = 120.0


class _Tables:
    """Joins the signature and stack tables of all fragments."""

    def __init__(self) -> None:
        self.signatures: dict[Signature, int] = {}
        self.stacks = StackTable()
        self._places: dict[int, tuple[object, npt.NDArray[np.int32], bool]] = {}

    def translate(
        self,
        fragment: Fragment,
        groups: npt.NDArray[np.int32] | None,
        out: Records,
        *,
        settled: bool,
    ) -> None:
        """Copy a fragment's rows into ``out`` with indexes into the common tables.

        ``groups``: the common index of each group, if it differs. ``settled``: the rows are already
        in ``out``.
        """
        if not settled:
            out[:] = fragment.records  # later fragments may overwrite the originals
        if groups is not None:
            out["group"] = groups.take(out["group"])
        signature, same = self._signature_places(fragment.signatures)
        if not same:
            out["signature"] = signature.take(out["signature"])
        self.stacks.translate(fragment.stacks, out["stack"])

    def _signature_places(
        self, signatures: tuple[Signature, ...]
    ) -> tuple[npt.NDArray[np.int32], bool]:
        """The common index of each signature, and whether it equals the local one.

        Ranks of one program often share one tuple.
        """
        known = self._places.get(id(signatures))
        if known is None:
            ids = self.signatures
            places = [ids.setdefault(s, len(ids)) for s in signatures]
            same = places == list(range(len(places)))
            # Keep the tuple alive, or its id() may be reused.
            known = (signatures, np.array(places, np.int32), same)
            self._places[id(signatures)] = known
        return known[1], known[2]


_FEW_FILES = 3
"""A warning about more files names only the first of them."""
_LONGEST_S = 1e7
"""The longest `HANGSCOPE_TIMEOUT`."""


def merge(
    fragments: Iterable[Fragment],
    *,
    warnings: Sequence[str] = (),
    unread: Sequence[Unread] = (),
    block: RowBlock | None = None,
) -> Trace:
    """Merge what the sources say into one job; the order of the fragments does not matter.

    Parameters
    ----------
    fragments:
        Of one job and one attempt. Several may describe the same rank.
    warnings:
        Printed before the fragments' own.
    unread:
        Files of the job that could not be used; their lines are the first warnings.
    block:
        Memory that may hold rows of the fragments; if it holds all, it becomes the trace's table.
    """
    ordered = sort_fragments(fragments)
    matcher = GroupMatcher(ordered)
    facts = with_unique_host_names(facts_by_rank(ordered))
    unranked = _unranked_processes(ordered)
    implied = _implied(ordered, matcher)
    sizes = sizes_from_gathers(ordered, matcher)
    stated = discard_mixed_counters(merge_members(_stated(ordered, matcher, implied)), implied)
    sources, claims = _sources_and_claims(ordered, matcher)
    world = _world_size(ordered, facts, matcher.groups, sizes)
    groups = matcher.complete(world, implied, sizes)
    with_rows = {f.facts.rank for f in ordered if len(f.records)}
    lines = _warnings([*(u.line for u in unread), *warnings], ordered)
    timeouts = [f.timeout_s for f in ordered if f.timeout_s and 0 < f.timeout_s <= _LONGEST_S]
    looks = min((f.looks for f in ordered if f.looks), default=1)
    records, tables = _records(ordered, matcher, block)  # empties the list
    signatures = tuple(tables.signatures)
    _resolve_peers(records, signatures, groups)
    return Trace(
        records=records,
        members=merge_members(np.concatenate([stated, implied])),
        groups=groups,
        signatures=signatures,
        stacks=tables.stacks.finished(),
        ranks=_settle_only_active(facts, with_rows),
        claims=claims,
        sources=sources,
        warnings=lines,
        unranked_processes=unranked,
        unread=tuple(unread),
        world_size=world,
        looks=looks,
        timeout_s=max(timeouts, default=DEFAULT_TIMEOUT_S),
        observed_ns=max((f.observed_ns for f in facts.values()), default=0),
    )


def sort_fragments(fragments: Iterable[Fragment]) -> list[Fragment]:
    """Sort by rank; fragments of one rank by how far their source is trusted."""
    return sorted(
        fragments,
        key=lambda f: (f.facts.rank, TRUST.get(f.source.format, 9), -len(f.records), f.source.path),
    )


def _records(
    ordered: list[Fragment], matcher: GroupMatcher, block: RowBlock | None
) -> tuple[Records, _Tables]:
    """All rows, sorted by rank, in one array.

    Each fragment is removed from ``ordered`` once it is copied. If the caller does not keep it
    either, memory never holds more than one extra copy of all rows.
    """
    tables = _Tables()
    parts = [f.records for f in ordered if len(f.records)]
    reused = block.reuse(parts) if block is not None else None
    joined, settled = reused or (np.empty(sum(map(len, parts)), RECORD_DTYPE), 0)
    del parts
    spans: dict[int, list[tuple[int, int]]] = {}
    at = 0
    ordered.reverse()
    while ordered:
        fragment = ordered.pop()
        if not len(fragment.records):
            continue
        end = at + len(fragment.records)
        numbers = matcher.renumbering(fragment)
        tables.translate(fragment, numbers, joined[at:end], settled=settled > 0)
        spans.setdefault(fragment.facts.rank, []).append((at, end))
        at, settled = end, settled - 1
    if all(len(own) == 1 for own in spans.values()):
        return joined, tables
    parts = [
        combine_rank([joined[a:b] for a, b in own]) if len(own) > 1 else joined[slice(*own[0])]
        for own in spans.values()
    ]
    return np.concatenate(parts), tables


def _with_common_groups(
    parts: Sequence[tuple[Fragment, Records]], matcher: GroupMatcher
) -> Records:
    """Member rows of fragments in one array, with indexes into the common group table."""
    parts = [(fragment, rows) for fragment, rows in parts if len(rows)]
    if not parts:
        return np.zeros(0, MEMBER_DTYPE)
    moved = np.frombuffer(bytearray().join([r.tobytes() for _, r in parts]), MEMBER_DTYPE)
    maps = [matcher.map_of(fragment) for fragment, _ in parts]
    sizes = np.array([len(m) for m in maps])
    lengths = [len(rows) for _, rows in parts]
    first = np.repeat(np.cumsum(sizes) - sizes, lengths)
    own = moved["group"]
    place = first + np.where(own < 0, np.repeat(sizes - 1, lengths), own)
    moved["group"] = np.concatenate(maps)[place]
    known: Records = moved[moved["group"] != NONE]
    return known


def _stated(ordered: Sequence[Fragment], matcher: GroupMatcher, implied: Records) -> Records:
    """Counters stated by all sources, maybe several rows per rank and group."""
    of_logs = [f.source.format == formats.LOG for f in ordered]
    recorded, told = (
        [(f, f.members) for f, is_log in zip(ordered, of_logs, strict=True) if is_log == wanted]
        for wanted in (False, True)
    )
    known = _with_common_groups(recorded, matcher)
    added = without_mixed_counters(_with_common_groups(told, matcher), known, implied)
    return np.concatenate([known, added])


def _implied(ordered: Sequence[Fragment], matcher: GroupMatcher) -> Records:
    """Counters implied by the records of all ranks, one row per rank and group."""
    parts = [
        (f, counters_of(f.records) if f.implied is None else f.implied)
        for f in ordered
        if len(f.records)
    ]
    return merge_members(_with_common_groups(parts, matcher))


def facts_by_rank(ordered: Sequence[Fragment]) -> dict[int, RankFacts]:
    """What all sources together say about each rank's process."""
    said: dict[int, list[tuple[str, RankFacts]]] = {}
    for fragment in ordered:
        if fragment.facts.rank != NONE:
            said.setdefault(fragment.facts.rank, []).append(
                (fragment.source.format, fragment.facts)
            )
    return {rank: merge_facts(said[rank]) for rank in sorted(said)}


def _unranked_processes(ordered: Sequence[Fragment]) -> tuple[UnrankedProcess, ...]:
    """The processes of unknown rank that have a stack, in the order of their ids."""
    found: dict[tuple[str, int], UnrankedProcess] = {}
    stacks = [f for f in ordered if f.facts.rank == NONE and f.facts.main_stack]
    nameless = Counter(f.source.path for f in stacks if f.facts.pid is None)
    so_far: Counter[str] = Counter()
    for facts, path in ((f.facts, f.source.path) for f in stacks):
        file = path.replace("\\", "/").rpartition("/")[2]
        so_far[path] += facts.pid is None
        which = f"process no. {so_far[path]}" if nameless[path] > 1 else "the process"
        name = facts.called or f"{which} of {file}"
        name = f"process {facts.pid}" if facts.pid is not None else name
        name += f" on {facts.host}" if facts.host else ""
        # The last dump of a process counts; processes without an id are kept apart by index.
        key = (name, 0 if facts.pid is not None else len(found))
        found[key] = UnrankedProcess(name, facts.pid, facts.main_stack)
    return tuple(sorted(found.values(), key=lambda s: (s.pid or 0, s.name)))


def _settle_only_active(
    facts: Mapping[int, RankFacts], with_rows: Collection[int]
) -> Mapping[int, RankFacts]:
    """An empty dump beside full ones is a full dump of a rank that issued nothing."""
    judged = [f.only_active for rank, f in facts.items() if rank in with_rows]
    if not judged or any(judged):
        return facts
    return {
        rank: replace(f, only_active=False) if f.only_active and not f.newest_lost else f
        for rank, f in facts.items()
    }


def _world_size(
    ordered: Sequence[Fragment],
    facts: Mapping[int, RankFacts],
    groups: Sequence[Group],
    sizes_by_use: Mapping[int, int],
) -> int | None:
    """The world size that the sources state, else the one implied by the highest rank mentioned."""
    sizes = [f.world_size or 0 for f in facts.values()]
    stated = Counter(s for s in sizes if 0 < s <= MAX_RANK + 1)  # anything larger is damage
    named = set(facts)
    for group in groups:
        named.update(group.ranks)
    for fragment in ordered:
        for claim in fragment.claims:
            named.update(claim.accused)
    highest = max(named, default=NONE)
    if stated:
        common = max(stated.items(), key=lambda item: (item[1], item[0]))[0]
        return max(common, highest + 1)
    default = [len(g.ranks) for g in groups if g.desc == "default_pg" and g.ranks]
    used = [
        g.size or sizes_by_use.get(i, 0) for i, g in enumerate(groups) if g.desc == "default_pg"
    ]
    known = max([*default, *used], default=0)
    if known:
        return max(known, highest + 1)
    return highest + 1 if len(named) > 1 else None


def _resolve_peers(
    records: Records, signatures: Sequence[Signature], groups: Sequence[Group]
) -> None:
    """Fill in the peers of sends and receives whose group only another source lists."""
    if not any(operations.is_p2p(operations.parse(s.raw).op) for s in signatures):
        return
    open_rows = np.flatnonzero(flagged(records["flags"], Flag.P2P) & (records["peer"] == NONE))
    for row in open_rows.tolist():
        group = records["group"][row]
        if group == NONE:
            continue
        parsed = operations.parse(signatures[records["signature"][row]].raw)
        if operations.is_p2p(parsed.op):
            members = groups[group]
            records["peer"][row] = global_peer(
                parsed, members.ranks, int(records["rank"][row]), members.desc == "default_pg"
            )


def _sources_and_claims(
    ordered: Sequence[Fragment], matcher: GroupMatcher
) -> tuple[tuple[Source, ...], tuple[Claim, ...]]:
    """Distinct sources, and claims with common indexes, the same statement once per reporter."""
    places: dict[Source, int] = {}
    claims: dict[tuple[object, ...], Claim] = {}
    for fragment in ordered:
        place = places.setdefault(fragment.source, len(places))
        groups = matcher.map_of(fragment)
        for claim in fragment.claims:
            group = int(groups[claim.group]) if claim.group != NONE else NONE
            key = (
                claim.kind,
                claim.accused,
                claim.reporter,
                group,
                claim.seq,
                claim.op,
                claim.text,
            )
            claims.setdefault(key, replace(claim, group=group, source=place))
    return tuple(places), tuple(claims.values())


def _warnings(first: Sequence[str], ordered: Sequence[Fragment]) -> tuple[str, ...]:
    """One line per warning; of many files with the same one, the first is named."""
    paths: dict[str, dict[str, None]] = defaultdict(dict)
    for fragment in ordered:
        for warning in fragment.warnings:
            paths[warning][fragment.source.path] = None
    lines = dict.fromkeys(first)
    for warning, found in paths.items():
        names = list(found)
        if len(names) > _FEW_FILES:
            names = [f"{names[0]} and {len(names) - 1} more"]
        lines.update(dict.fromkeys(f"{name}: {warning}" for name in names))
    return tuple(lines)
