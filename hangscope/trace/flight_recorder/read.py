"""Reads PyTorch Flight Recorder dumps, pickled or JSON, of every version.

Versions: none (a bare list of entries, torch 2.2), 1.x and 2.0 to 2.11; see docs/recorder.md for
what each torch writes, and the module's tests for one of each. Collectors pass the same tables on:
with lists for tuples, strings for numbers, no frames, unfinished entries only, several ranks in one
file. The names of the fields are torch's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hangscope.trace import clean
from hangscope.trace.files.sniff import Unreadable
from hangscope.trace.flight_recorder import hangscope_extension
from hangscope.trace.flight_recorder.aborted_operations import ended_by_abort, mark_unfinished
from hangscope.trace.flight_recorder.columns import SEQ_FIELDS, Entries, pick
from hangscope.trace.flight_recorder.counters import (
    apply_counters,
    completed_p2p_rows,
    counts_all_groups,
    read_status,
)
from hangscope.trace.flight_recorder.coverage import lists_active_only, oldest_record
from hangscope.trace.flight_recorder.dump_rank import rank_of
from hangscope.trace.flight_recorder.entry_groups import recreated_groups_note
from hangscope.trace.flight_recorder.entry_records import Tables, read_records
from hangscope.trace.flight_recorder.groups import GroupTable, read_config
from hangscope.trace.flight_recorder.hook_recorders import (
    discard_batched_completions,
    interpret_retired,
)
from hangscope.trace.flight_recorder.p2p import completed_before_batch
from hangscope.trace.flight_recorder.sequence_numbers import Numbering
from hangscope.trace.flight_recorder.signatures import Signatures
from hangscope.trace.flight_recorder.wrappers import find_dumps, names_of, parts_of
from hangscope.trace.model import (
    NONE,
    Flag,
    Fragment,
    RankFacts,
    Records,
    Source,
    State,
    flagged,
)
from hangscope.trace.rows import last_event_ns

MAX_ENTRIES = 5_000_000
_NOTHING_KNOWN = "neither operation nor sequence number"
_TRUNCATED = "it ends in the middle (truncated): its counters are used, its entries are not"
_DUMP_TIMES = ("dump_time_ns", "timestamp_ns", "time_ns")
_LONG_NS = 3600 * 10**9
"""torch's watchdog writes a dump when its timeout is over, which is rarely longer than this."""
_DATED_BY_FILE = (
    "it does not say when it was written, so the date of its file counts: if that is the date of a "
    "copy, the waiting was shorter than shown"
)
_OTHER_CLOCK_NS = 120 * 10**9
"""How far the clocks of two hosts may differ in a running job."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a document comes from: printable path, format, rank by file name, modification time,
    and whether the file is truncated.
    """

    path: str
    format: str
    rank: int | None = None
    written_ns: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class _Dump:
    """A dump as it was written, and its usable entries."""

    document: Mapping[str, Any]
    entries: Entries
    skipped: int
    """How many entries are malformed."""
    unusable: str
    """Why the entries cannot be compared; empty if they can."""

    @property
    def config(self) -> Any:
        """The groups and their members."""
        return self.document.get("pg_config")

    @property
    def status(self) -> Any:
        """The groups' counters."""
        return self.document.get("pg_status")


def read_document(document: Any, origin: Origin) -> list[Fragment]:
    """Fragments of one loaded document; several if a collector put several ranks into one file.

    Raises
    ------
    Unreadable
        If the document is not a Flight Recorder dump; the text says what it is instead.
    """
    parts = find_dumps(document, origin.rank)
    return [_read_dump(dump, rank, origin) for rank, dump in parts]


def _read_dump(raw: Any, named: int | None, origin: Origin) -> Fragment:
    """The dump of one rank; ``named`` is the number in its key or file name."""
    dump = _usable(raw)
    rank = rank_of(dump.entries, dump.config, named)
    own = dump.document.get(hangscope_extension.KEY)
    tables = Tables(read_config(dump.config, rank, hangscope_extension.unlisted_groups(own)))
    counted = bool(dump.status) or not isinstance(dump.status, Mapping)
    records, numbering = read_records(dump.entries, rank, tables, counted=counted)
    native_gloo = _is_native_gloo(tables.signatures, dump)
    if native_gloo:
        _settle_gloo(records)
    backends = {s.backend for s in tables.signatures.table}
    at_issue = interpret_retired(records, dump.entries, backends)
    flags = hangscope_extension.flags_of(own, len(records))
    if flags is not None:
        records["flags"] = flags
    agree = numbering is not Numbering.FROM_ZERO
    status = dump.status if agree and not counts_all_groups(dump.status, records) else {}
    members = read_status(status, tables.groups, records, rank, native_gloo)
    if dump.unusable and not (members["enqueued"] > 0).any():
        raise Unreadable(dump.unusable)
    if at_issue:
        members["completed"] = NONE  # completions that nobody reports are not counted, either
    if foreign := own is None and not native_gloo:
        mark_unfinished(records, members, completed_before_batch(records))
    told_ns, last_ns = _dump_time_ns(dump.document), last_event_ns(records)
    observed_ns = told_ns or _file_time_ns(last_ns, origin.written_ns)
    is_old = not told_ns and last_ns and observed_ns - last_ns > _LONG_NS
    aborted = ended_by_abort(records, observed_ns) if foreign else np.zeros(0, np.int64)
    if len(aborted):
        mark_unfinished(records, members, aborted)
    facts = _facts(dump, rank, records, members, native_gloo=native_gloo, observed_ns=observed_ns)
    facts = _in_part(facts, truncated=origin.truncated, unusable=bool(dump.unusable))
    # An export's flags already include what its first reader inferred or left open.
    if not native_gloo and not len(aborted) and flags is None:
        records["state"][completed_p2p_rows(status, tables.groups, records)] = State.COMPLETED
        apply_counters(records, members)
    if foreign:
        discard_batched_completions(records, backends)
    return Fragment(
        source=Source(
            path=origin.path,
            format=origin.format,
            version=_version(dump, tables.groups),
            rank=rank,
            records=len(records),
            dropped=dump.skipped,
        ),
        facts=hangscope_extension.decode_into(own, facts),
        records=records,
        members=members,
        groups=tuple(tables.groups.groups),
        signatures=tuple(tables.signatures.table),
        stacks=tuple(tables.stacks.table),
        claims=(
            *hangscope_extension.claims_in(own, rank),
            *hangscope_extension.verdicts_in(own),
        ),
        timeout_s=hangscope_extension.timeout_s_of(own),
        looks=hangscope_extension.looks_of(own),
        warnings=(
            *_warnings(dump, rank, tables.groups, len(aborted)),
            *([numbering.value] if numbering.value else []),
            *([_TRUNCATED] if origin.truncated else []),
            *([_DATED_BY_FILE] if is_old else []),
        ),
    )


def _usable(raw: Any) -> _Dump:
    """The dump with its readable entries.

    Raises
    ------
    Unreadable
        If nothing in it can be compared with other dumps.
    """
    document, entries = parts_of(raw)
    if not isinstance(entries, (list, tuple)):
        raise Unreadable(f"its entries are a {type(entries).__name__}, not a list")
    if len(entries) > MAX_ENTRIES:
        raise Unreadable(f"{len(entries)} entries are more than any recorder holds")
    kept = Entries(e for e in entries if isinstance(e, dict))
    unusable = _unusable(kept, len(entries))
    if unusable and not document.get("pg_status"):
        raise Unreadable(unusable)
    if unusable:  # its counters may still say how far the rank has come
        return _Dump(document, Entries(()), len(entries), unusable)
    return _Dump(document, kept, len(entries) - len(kept), "")


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
    numbered = "record_id" in dump.entries.names
    return RankFacts(
        rank=rank,
        host=clean.as_name(document.get("hostname")) or None,
        pid=_optional_int(document.get("pid")),
        local_rank=_optional_int(document.get("local_rank")),
        world_size=_optional_int(document.get("world_size")),
        observed_ns=observed_ns,
        dropped=dump.skipped,
        oldest_record_id=oldest_record(records, numbered=numbered),
        only_active=not native_gloo and lists_active_only(records, members, numbered),
    )


def _in_part(facts: RankFacts, *, truncated: bool, unusable: bool) -> RankFacts:
    """The facts of a rank of whose dump the entries may not be usable."""
    if truncated:  # the file's date may be the copy's, and nothing else shows when it was written
        facts = replace(facts, observed_ns=0)
    return replace(facts, only_active=True, newest_lost=True) if truncated or unusable else facts


def _warnings(dump: _Dump, rank: int, table: GroupTable, aborted: int) -> Iterator[str]:
    """Notes for the user; ``aborted`` is the number of operations marked as unfinished."""
    if note := recreated_groups_note(table):
        yield note
    if dump.unusable:
        yield f"{dump.unusable}; only its counters are used"
    elif dump.skipped:
        of_all = len(dump.entries) + dump.skipped
        yield f"{dump.skipped} of its {of_all} entries are no records; ignored"
    if aborted:
        yield (
            f"{aborted} operations ended together when rank {rank} gave up waiting; they are taken "
            "for unfinished"
        )


def _unusable(entries: Entries, listed: int) -> str:
    """Why the entries cannot be compared; empty if they can.

    ``listed`` is the number of entries before those that are no records were left out.
    """
    if not entries:
        return "none of its entries is a record" if listed else ""
    name = pick(entries, *SEQ_FIELDS)
    if name is None:
        what = "no sequence number" if "profiling_name" in entries.names else _NOTHING_KNOWN
        return (
            f"its entries have {what} under a known name "
            f"(they have {names_of(entries[0]) or 'no field'})"
        )
    if all(clean.as_int(entry.get(name), NONE) == NONE for entry in entries):
        return f"its entries have no number as {name}"
    return ""


def _optional_int(value: Any) -> int | None:
    number = clean.as_int(value, NONE, low=0, high=1 << 31)
    return None if number == NONE else number


def _is_native_gloo(signatures: Signatures, dump: _Dump) -> bool:
    """Whether native Gloo wrote it, which never moves an entry beyond ``scheduled``."""
    if not dump.entries or any(s.backend != "gloo" for s in signatures.table):
        return False
    if isinstance(dump.config, Mapping) and any(clean.as_name(key) for key in dump.config):
        return False
    return all(entry.get("state") == "scheduled" for entry in dump.entries)


def _settle_gloo(records: Records) -> None:
    """Apply what Gloo does report: a retired entry has finished; the others are unobserved."""
    retired = flagged(records["flags"], Flag.RETIRED)
    records["state"][retired] = State.COMPLETED
    records["flags"][~retired] |= np.uint16(Flag.UNOBSERVED)


def _dump_time_ns(document: Mapping[str, Any]) -> int:
    """When the dump was written, according to itself; 0 if it does not say."""
    stamps = (clean.as_int(document.get(k), 0, low=0) for k in _DUMP_TIMES)
    return next(filter(None, stamps), 0)


def _file_time_ns(last_ns: int, written_ns: int) -> int:
    """When the dump was written, according to its file, unless that cannot be."""
    if last_ns and -_OTHER_CLOCK_NS <= written_ns - last_ns < 0:
        return last_ns + 1  # the host's clock is ahead of the file server's
    if last_ns and not (0 <= written_ns - last_ns <= 30 * 86400 * 10**9):
        return last_ns  # the file was copied later, or on a host with a different clock
    return written_ns
