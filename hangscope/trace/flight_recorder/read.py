"""PyTorch Flight Recorder dumps, pickled or JSON, of every version and dialect, as fragments.

Versions: none (a bare list of entries, torch 2.2), 1.x and 2.0 to 2.11; see docs/recorder.md for
what each torch writes, and the module's tests for one of each. Other collectors write the same
tables with their own spellings: lists for tuples, strings for numbers, no frames, unfinished
entries only, several ranks in one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hangscope.trace import clean, operations
from hangscope.trace.files.sniff import Unreadable
from hangscope.trace.flight_recorder import hangscope_extension
from hangscope.trace.flight_recorder.aborted_operations import let_go, take_back
from hangscope.trace.flight_recorder.columns import OP_FIELDS, SEQ_FIELDS, Entries, pick
from hangscope.trace.flight_recorder.counters import (
    finished_halves,
    of_all_groups,
    read_status,
    settle_by_counters,
)
from hangscope.trace.flight_recorder.coverage import lists_active_only, oldest_record
from hangscope.trace.flight_recorder.entry_groups import made_again
from hangscope.trace.flight_recorder.entry_records import ID_FIELDS, Tables, read_records
from hangscope.trace.flight_recorder.groups import GroupTable, has_rank, read_config
from hangscope.trace.flight_recorder.hook_recorders import hide_ends_of_batches, settle_retired
from hangscope.trace.flight_recorder.p2p import ended_early
from hangscope.trace.flight_recorder.signatures import Signatures
from hangscope.trace.flight_recorder.wrappers import find_dumps, names_of, parts_of
from hangscope.trace.model import (
    MAX_RANK,
    NONE,
    Flag,
    Fragment,
    RankFacts,
    Records,
    Source,
    State,
    flagged,
)

MAX_ENTRIES = 5_000_000
_CUT = "it ends in the middle (truncated): its counters are used, its entries are not"
_OTHER_CLOCK_NS = 120 * 10**9
"""What clocks of two hosts may differ by in a job that runs."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a document comes from: shown path, format, rank by file name, time of the file, and
    whether that ends in the middle."""

    path: str
    format: str
    rank: int | None = None
    written_ns: int = 0
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Dump:
    """A dump as it was written, and those of its entries that are records."""

    document: Mapping[str, Any]
    entries: Entries
    skipped: int
    """Entries that are none."""
    unusable: str
    """What keeps the entries from being compared; empty where nothing does."""

    @property
    def config(self) -> Any:
        """The groups and their members."""
        return self.document.get("pg_config")

    @property
    def status(self) -> Any:
        """The groups' counters."""
        return self.document.get("pg_status")


def read_document(document: Any, origin: Origin) -> list[Fragment]:
    """Fragments of one loaded dump; several where a collector put several ranks into one file.

    Raises
    ------
    Unreadable
        Where the document is no Flight Recorder dump; the text says what it is instead.
    """
    parts = find_dumps(document, origin.rank)
    return [_read_dump(dump, rank, origin) for rank, dump in parts]


def _read_dump(raw: Any, named: int | None, origin: Origin) -> Fragment:
    """The dump of one rank; ``named`` is the number that its key or its file's name gives."""
    dump = _usable(raw)
    rank = _rank_of(dump, named)
    own = dump.document.get(hangscope_extension.KEY)
    tables = Tables(read_config(dump.config, rank, hangscope_extension.unlisted_groups(own)))
    counted = bool(dump.status) or not isinstance(dump.status, Mapping)
    records, agree = read_records(dump.entries, rank, tables, counted=counted)
    native_gloo = _is_native_gloo(tables.signatures, dump)
    if native_gloo:
        _settle_gloo(records)
    backends = {s.backend for s in tables.signatures.table}
    at_issue = settle_retired(records, dump.entries, backends)
    flags = hangscope_extension.flags_of(own, len(records))
    if flags is not None:
        records["flags"] = flags
    status = dump.status if agree and not of_all_groups(dump.status, records) else {}
    members = read_status(status, tables.groups, records, rank, native_gloo)
    if at_issue:
        members["completed"] = NONE  # what nobody reports is not counted either
    if foreign := own is None and not native_gloo:
        take_back(records, members, ended_early(records))
    observed_ns = _observed(dump.document, records, origin.written_ns)
    aborted = let_go(records, observed_ns) if foreign else np.zeros(0, np.int64)
    if len(aborted):
        take_back(records, members, aborted)
    facts = _facts(dump, rank, records, members, native_gloo=native_gloo, observed_ns=observed_ns)
    if origin.cut:
        # The file's date may be that of the copy, and nothing else tells when it was written.
        facts = replace(facts, only_active=True, newest_lost=True, observed_ns=0)
    # An export's flags say what its first reader had settled, and what it had to leave open.
    if not native_gloo and not len(aborted) and flags is None:
        records["state"][finished_halves(status, tables.groups, records)] = State.COMPLETED
        settle_by_counters(records, members)
    if foreign:
        hide_ends_of_batches(records, backends)
    return Fragment(
        source=Source(
            path=origin.path,
            format=origin.format,
            version=_version(dump, tables.groups),
            rank=rank,
            records=len(records),
            dropped=dump.skipped,
        ),
        facts=hangscope_extension.from_plain(own, facts),
        records=records,
        members=members,
        groups=tuple(tables.groups.groups),
        signatures=tuple(tables.signatures.table),
        stacks=tuple(tables.stacks.table),
        claims=hangscope_extension.claims_in(own, rank),
        timeout_s=hangscope_extension.timeout_s_of(own),
        warnings=(
            *_warnings(dump, rank, tables.groups, len(aborted)),
            *([_CUT] if origin.cut else []),
        ),
    )


def _usable(raw: Any) -> _Dump:
    """The dump with those of its entries that can be read.

    Raises
    ------
    Unreadable
        Where nothing of it can be compared with other dumps.
    """
    document, entries = parts_of(raw)
    if isinstance(entries, Mapping):  # keyed by record id
        entries = list(entries.values())
    if not isinstance(entries, (list, tuple)):
        raise Unreadable(f"its entries are a {type(entries).__name__}, not a list")
    if len(entries) > MAX_ENTRIES:
        raise Unreadable(f"{len(entries)} entries are more than any recorder holds")
    kept = Entries(e for e in entries if isinstance(e, dict))
    dump = _Dump(document, kept, len(entries) - len(kept), _unusable(kept))
    if not document.get("pg_status"):
        if dump.skipped and not kept:
            raise Unreadable("none of its entries is a record")
        if dump.unusable:
            raise Unreadable(dump.unusable)
    return dump


def _rank_of(dump: _Dump, named: int | None) -> int:
    """Whose dump it is.

    Raises
    ------
    Unreadable
        Where neither a name nor an entry tells.
    """
    if named is not None and named <= MAX_RANK and _possible(named, dump.config):
        return named
    # A number in the name that is no rank: a date, a process id, a local rank.
    rank = _rank_from_pairs(dump.entries, dump.config)
    if rank is None:
        raise Unreadable("cannot tell whose dump it is; put the rank at the end of its name")
    return rank


def _version(dump: _Dump, table: GroupTable) -> str:
    listed = any(g.ranks for g in table.groups)
    return clean.as_name(dump.document.get("version"), "unknown" if listed else "none")


def _facts(
    dump: _Dump,
    rank: int,
    records: Records,
    members: Records,
    *,
    native_gloo: bool,
    observed_ns: int,
) -> RankFacts:
    document = dump.document
    numbered = pick(dump.entries, *ID_FIELDS) is not None
    return RankFacts(
        rank=rank,
        host=clean.as_name(document.get("hostname", document.get("host"))) or None,
        pid=_optional_int(document.get("pid")),
        local_rank=_optional_int(document.get("local_rank")),
        world_size=_optional_int(document.get("world_size")),
        observed_ns=observed_ns,
        dropped=dump.skipped,
        oldest_record_id=oldest_record(records, numbered=numbered),
        only_active=not native_gloo and lists_active_only(records, members, numbered),
    )


def _warnings(dump: _Dump, rank: int, table: GroupTable, aborted: int) -> Iterator[str]:
    """What a reader should know; ``aborted`` operations were taken back."""
    if note := made_again(table):
        yield note
    if dump.unusable:
        yield dump.unusable
    if dump.skipped:
        of_all = len(dump.entries) + dump.skipped
        yield f"{dump.skipped} of its {of_all} entries are no records; ignored"
    if aborted:
        yield (
            f"{aborted} operations ended together when rank {rank} gave up waiting; they are taken "
            "for unfinished"
        )


def _unusable(entries: Entries) -> str:
    """What keeps a dialect's entries from being compared; empty where nothing does."""
    if not entries or pick(entries, *SEQ_FIELDS):
        return ""
    what = "neither operation nor sequence number" if not pick(entries, *OP_FIELDS) else ""
    return (
        f"its entries have {what or 'no sequence number'} under a name HangScope knows "
        f"(they have {names_of(entries[0])})"
    )


def _optional_int(value: Any) -> int | None:
    number = clean.as_int(value, NONE, low=0, high=1 << 31)
    return None if number == NONE else number


def _possible(rank: int, config: Any) -> bool:
    """Whether the number can be a rank beside what the default group lists.

    Fault-tolerant jobs count the default group's ranks anew in each replica, so a rank outside the
    list is possible, a number a hundred times its length is not.
    """
    for group in read_config(config, NONE).groups:
        if group.desc == "default_pg" and group.ranks and not has_rank(group.ranks, rank):
            return rank < 100 * len(group.ranks)
    return True


def _rank_from_pairs(entries: Entries, config: Any) -> int | None:
    """The rank, where a point-to-point entry tells its place in a group whose members are known."""
    table = read_config(config, NONE)
    members = {g.name: g.ranks for g in table.groups if g.ranks}
    for entry in entries[:20000]:
        name = entry.get("profiling_name")
        group = entry.get("process_group")
        if not isinstance(name, str) or not isinstance(group, (list, tuple)) or not group:
            continue
        parsed = operations.parse(name)
        own = parsed.src if parsed.op == "send" else parsed.dst if parsed.op == "recv" else NONE
        ranks = members.get(clean.as_name(group[0]), ())
        if 0 <= own < len(ranks):
            return ranks[own]
    return None


def _is_native_gloo(signatures: Signatures, dump: _Dump) -> bool:
    """Native Gloo never moves an entry beyond ``scheduled``; other writers name the states."""
    if not dump.entries or any(s.backend != "gloo" for s in signatures.table):
        return False
    if isinstance(dump.config, Mapping) and any(clean.as_name(key) for key in dump.config):
        return False
    name = pick(dump.entries, "state") or "state"
    return all(entry.get(name) == "scheduled" for entry in dump.entries)


def _settle_gloo(records: Records) -> None:
    """Read what Gloo does say: a retired entry has finished; the rest cannot be seen."""
    retired = flagged(records["flags"], Flag.RETIRED)
    records["state"][retired] = State.COMPLETED
    records["flags"][~retired] |= np.uint16(Flag.UNOBSERVED)


def _observed(document: Mapping[str, Any], records: Records, written_ns: int) -> int:
    """When it was written, as the dump itself or else its file tells."""
    for key in ("dump_time_ns", "timestamp_ns", "time_ns"):
        stamp = clean.as_int(document.get(key), 0, low=0)
        if stamp:
            return stamp
    if len(records):
        last = max(int(records[c].max()) for c in ("created_ns", "started_ns", "completed_ns"))
        if last and -_OTHER_CLOCK_NS <= written_ns - last < 0:
            return last + 1  # the host's clock is ahead of the file server's
        if last and not (0 <= written_ns - last <= 30 * 86400 * 10**9):
            return last  # the file was copied later, or on a machine with another clock
    return written_ns
