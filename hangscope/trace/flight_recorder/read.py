"""PyTorch Flight Recorder dumps, pickled or JSON, of every version and dialect, as fragments.

Versions: none (a bare list of entries, torch 2.2), 1.x and 2.0 to 2.11; see the module's tests for
one of each. Other collectors write the same tables with their own spellings: lists for tuples,
strings for numbers, no frames, unfinished entries only, several ranks in one file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hangscope.trace import clean, operations
from hangscope.trace.files.sniff import Unreadable
from hangscope.trace.flight_recorder import own_story
from hangscope.trace.flight_recorder.aborted import let_go, take_back
from hangscope.trace.flight_recorder.columns import (
    OP_FIELDS,
    SEQ_FIELDS,
    Entries,
    bool_column,
    int_column,
    pick,
    rows_of,
    values_of,
)
from hangscope.trace.flight_recorder.counters import (
    finished_halves,
    read_status,
    settle_by_counters,
)
from hangscope.trace.flight_recorder.extent import lists_active_only, oldest_record
from hangscope.trace.flight_recorder.groups import GroupTable, has_rank, read_config
from hangscope.trace.flight_recorder.hooks import number_groups, one_for_all, settle_retired
from hangscope.trace.flight_recorder.intern import Key, Row, Rows
from hangscope.trace.flight_recorder.pairs import mark_batches, set_peers
from hangscope.trace.flight_recorder.signatures import Signatures
from hangscope.trace.flight_recorder.stacks import Stacks
from hangscope.trace.flight_recorder.states import state_columns
from hangscope.trace.flight_recorder.wrappers import find_dumps, names_of, parts_of
from hangscope.trace.model import (
    MAX_RANK,
    NONE,
    RECORD_DTYPE,
    Flag,
    Fragment,
    RankFacts,
    Records,
    Source,
    State,
)

MAX_ENTRIES = 5_000_000
_OTHER_CLOCK_NS = 120 * 10**9
"""What clocks of two hosts may differ by in a job that runs."""
ID_FIELDS = ("record_id", "id")
_TUPLE_TEXT = re.compile(r"[(\[]\s*['\"]([^'\"]*)['\"]\s*,\s*['\"]([^'\"]*)['\"]\s*[)\]]")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a document comes from: shown path, format, rank by file name, time of the file."""

    path: str
    format: str
    rank: int | None = None
    written_ns: int = 0


def read_document(document: Any, origin: Origin) -> list[Fragment]:
    """Fragments of one loaded dump; several where a collector put several ranks into one file.

    Raises
    ------
    Unreadable
        Where the document is no Flight Recorder dump; the text says what it is instead.
    """
    parts = find_dumps(document, origin.rank)
    return [_read_dump(dump, rank, origin) for rank, dump in parts]


def _read_dump(dump: Any, rank: int | None, origin: Origin) -> Fragment:
    document, raw_entries = parts_of(dump)
    if isinstance(raw_entries, Mapping):  # keyed by record id
        raw_entries = list(raw_entries.values())
    if not isinstance(raw_entries, (list, tuple)):
        raise Unreadable(f"its entries are a {type(raw_entries).__name__}, not a list")
    if len(raw_entries) > MAX_ENTRIES:
        raise Unreadable(f"{len(raw_entries)} entries are more than any recorder holds")
    entries = Entries(e for e in raw_entries if isinstance(e, dict))
    skipped = len(raw_entries) - len(entries)
    if skipped and not entries and not document.get("pg_status"):
        raise Unreadable("none of its entries is a record")
    unusable = _unusable(entries)
    if unusable and not document.get("pg_status"):
        raise Unreadable(unusable)
    if rank is None or rank > MAX_RANK or not _possible(rank, document):
        # A number in the name that is no rank: a date, a process id, a local rank.
        rank = _rank_from_pairs(entries, document.get("pg_config"))
    if rank is None:
        raise Unreadable("cannot tell whose dump it is; put the rank at the end of its name")
    number = rank

    table = read_config(document.get("pg_config"), number)
    group, epochs_note = _group_column(entries, table)
    signatures, stacks = Signatures(), Stacks()
    status = document.get("pg_status")
    counted = bool(status) or not isinstance(status, Mapping)
    records = _records(entries, number, group, signatures, stacks, table, counted)
    listed = any(g.ranks for g in table.groups)
    version = clean.as_name(document.get("version"), "unknown" if listed else "none")
    native_gloo = _is_native_gloo(signatures, entries, document)
    if native_gloo:
        _settle_gloo(records)
    at_issue = settle_retired(records, entries, {s.backend for s in signatures.table})
    own = document.get(own_story.KEY)
    flags = own_story.flags_of(own, len(records))
    if flags is not None:
        records["flags"] = flags
    members = read_status(status, table, records, number, native_gloo)
    if at_issue:
        members["completed"] = NONE  # what nobody reports is not counted either
    warnings = [note for note in (epochs_note, unusable) if note]
    if skipped:
        warnings.append(f"{skipped} of its {len(raw_entries)} entries are no records; left out")
    numbered = pick(entries, *ID_FIELDS) is not None
    observed = _observed(document, records, origin.written_ns)
    foreign = own is None and not native_gloo
    aborted = let_go(records, observed) if foreign else np.zeros(0, np.int64)
    if len(aborted):
        take_back(records, members, aborted)
        warnings.append(
            f"{len(aborted)} operations ended together when rank {number} gave up waiting; they "
            "are taken for unfinished"
        )
    facts = RankFacts(
        rank=number,
        host=clean.as_name(document.get("hostname", document.get("host"))) or None,
        pid=_optional_int(document.get("pid")),
        local_rank=_optional_int(document.get("local_rank")),
        world_size=_optional_int(document.get("world_size")),
        observed_ns=observed,
        dropped=skipped,
        oldest_record_id=oldest_record(records, numbered=numbered),
        only_active=not native_gloo and lists_active_only(records, members, numbered),
    )
    facts = own_story.from_plain(own, facts)
    if not native_gloo and not len(aborted):
        records["state"][finished_halves(status, table, records)] = State.COMPLETED
        settle_by_counters(records, members)
    source = Source(
        path=origin.path,
        format=origin.format,
        version=version,
        rank=rank,
        records=len(records),
        dropped=skipped,
    )
    return Fragment(
        source=source,
        facts=facts,
        records=records,
        members=members,
        groups=tuple(table.groups),
        signatures=tuple(signatures.table),
        stacks=tuple(stacks.table),
        claims=own_story.claims_in(own, number),
        timeout_s=own_story.timeout_s_of(own),
        warnings=tuple(warnings),
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


def _possible(rank: int, document: Mapping[str, Any]) -> bool:
    """Whether the number can be a rank beside what the default group lists.

    Fault-tolerant jobs count the default group's ranks anew in each replica, so a rank outside the
    list is possible, a number a hundred times its length is not.
    """
    for group in read_config(document.get("pg_config"), NONE).groups:
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


def _group_column(entries: Entries, table: GroupTable) -> tuple[Any, str]:
    """Group index per entry; fills ``table.by_pg_id`` and adds groups that only entries name."""
    name_key = pick(
        entries, "process_group", "pg", "group", "pg_name", "group_name", "communicator",
        "comm_name", "comm",
    )  # fmt: skip
    id_key = pick(entries, "pg_id", "group_id", "comm_id", "comm_hash")

    def resolve(row: Row, _: Key) -> int:
        pg, pg_id, desc = row if len(row) == 3 else (*row, None)
        number = clean.as_name(pg_id)
        if isinstance(pg, Mapping):
            pg = (pg.get("name", pg.get("id")), pg.get("desc", pg.get("description")))
        elif type(pg) is str and (found := _TUPLE_TEXT.fullmatch(pg)):
            pg = found.groups()
        if isinstance(pg, (list, tuple)):
            name = clean.as_name(pg[0]) if pg else ""
            desc = clean.as_name(pg[1]) if len(pg) > 1 else ""
        else:
            name = clean.as_name(pg) or number or "0"
            desc = clean.as_name(desc)
        return _group_index(table, name, desc, number)

    desc_key = pick(entries, "pg_desc", "desc", "group_desc")
    fields = (name_key, id_key) if desc_key is None else (name_key, id_key, desc_key)
    column = Rows(resolve).column(rows_of(entries, fields))
    reborn = [g.name for g in table.groups if g.epoch]
    note = ""
    if reborn:
        note = f"group {', '.join(sorted(set(reborn))[:3])} was made more than once; kept apart"
    return column, note


def _group_index(table: GroupTable, name: str, desc: str, pg_id: str) -> int:
    """The group an entry names; the same name under a new ``pg_id`` is a group made again."""
    by_id = table.by_pg_id.get(pg_id) if pg_id else None
    if by_id is not None and table.groups[by_id].name == name:
        return by_id
    existing = table.by_name.get(name)
    if existing is None:
        index = table.add(name, desc)
    else:
        index = existing
        group = table.groups[existing]
        if pg_id and existing in table.by_pg_id.values():
            index = table.add(name, desc or group.desc, group.ranks, group.epoch + 1)
        elif desc and not group.desc:
            table.groups[existing] = type(group)(
                name=group.name, desc=desc, ranks=group.ranks, epoch=group.epoch
            )
    if pg_id:
        table.by_pg_id[pg_id] = index
    return index


def _records(
    entries: Entries,
    rank: int,
    group: Any,
    signatures: Signatures,
    stacks: Stacks,
    table: GroupTable,
    counted: bool,
) -> Records:
    records = np.zeros(len(entries), RECORD_DTYPE)
    if not entries:
        return records
    records["rank"] = rank
    records["group"] = group
    records["signature"] = signatures.column(entries)
    records["stack"] = stacks.column(entries)
    records["collective_seq"] = int_column(entries, NONE, *SEQ_FIELDS)
    records["p2p_seq"] = int_column(entries, 0, "p2p_seq_id", "p2p_seq")
    records["op_id"] = int_column(entries, NONE, "op_id")
    record_id = pick(entries, *ID_FIELDS)
    records["record_id"] = (
        int_column(entries, NONE, record_id) if record_id else np.arange(len(entries))
    )
    records["created_ns"] = _times(entries, "time_created")
    records["started_ns"] = _times(entries, "time_discovered_started")
    records["completed_ns"] = _times(entries, "time_discovered_completed")
    records["thread"] = int_column(entries, 0, "thread_id")
    records["timeout_ms"] = int_column(entries, 0, "timeout_ms")
    p2p = np.array([operations.is_p2p(s.op) for s in signatures.table], bool)[records["signature"]]
    batch = np.array([operations.is_batch(s.op) for s in signatures.table], bool)
    is_batch = batch[records["signature"]]
    if one_for_all(records, numbered=record_id is not None, counted=counted):
        number_groups(records, p2p | is_batch)
    records["state"], unknown = state_columns(entries)
    done = (records["completed_ns"] > 0) & (records["state"] < State.COMPLETED)
    records["state"][done] = State.COMPLETED
    records["root"] = int_column(entries, NONE, "root", "root_rank")
    records["peer"] = NONE
    flags = np.zeros(len(entries), np.uint16)
    # A dialect that does not tell states cannot tell that something has not finished either.
    if unknown is not None:
        flags[unknown & (records["completed_ns"] == 0)] |= np.uint16(Flag.UNOBSERVED)
    retired = bool_column(entries, "retired")
    if retired is not None:
        flags[retired] |= np.uint16(Flag.RETIRED)
    marked = bool_column(entries, "is_p2p")
    if marked is not None:
        p2p |= marked
    mark_batches(records, flags, p2p, is_batch, numbered=record_id is not None)
    records["flags"] = flags
    if p2p.any():
        set_peers(records, signatures, table, rank)
    return records


def _times(entries: Entries, stem: str) -> Any:
    """Nanoseconds since the epoch; dumps of torch 2.2 count microseconds, nulls are 0."""
    name = pick(entries, f"{stem}_ns")
    if name is not None:
        values = [value or 0 for value in values_of(entries, name)]
        try:
            column = np.fromiter(values, np.int64, len(values))
        except (TypeError, ValueError, OverflowError):
            column = int_column(entries, 0, name)
        return np.maximum(column, 0)
    micro = int_column(entries, 0, f"{stem}_us")
    return np.where((micro > 0) & (micro < (1 << 62) // 1000), micro * 1000, 0)


def _is_native_gloo(signatures: Signatures, entries: Entries, document: Any) -> bool:
    """Native Gloo never moves an entry beyond ``scheduled``; other writers name the states."""
    if not entries or any(s.backend != "gloo" for s in signatures.table):
        return False
    config = document.get("pg_config")
    usable = isinstance(config, Mapping) and any(clean.as_name(key) for key in config)
    if usable:
        return False
    name = pick(entries, "state") or "state"
    return all(entry.get(name) == "scheduled" for entry in entries)


def _settle_gloo(records: Records) -> None:
    """Read what Gloo does say: a retired entry has finished; the rest cannot be seen."""
    retired = (records["flags"] & Flag.RETIRED) != 0
    records["state"][retired] = State.COMPLETED
    records["flags"][~retired] |= np.uint16(Flag.UNOBSERVED)


def _observed(document: Mapping[str, Any], records: Records, written_ns: int) -> int:
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
