"""Reads a HangScope ring as a `Fragment`: one copy of its slots, no parsing of records."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.ring import layout
from hangscope.ring.layout import SLOT, ExitKind, Unobservable, ValueKind
from hangscope.ring.reader import RingReader, decode_text
from hangscope.ring.reader_once import OneTimeReader, Room
from hangscope.trace import clean, formats
from hangscope.trace.merge_records import counters_of
from hangscope.trace.model import (
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    ExceptionFacts,
    ExitFacts,
    Fragment,
    Frame,
    Phase,
    RankFacts,
    Records,
    Signature,
    Source,
    Stack,
    ThreadStack,
)
from hangscope.trace.process import ProcessLook, look_at
from hangscope.trace.ring_values import Ids, RingValues
from hangscope.trace.stack_dump import parse_faulthandler, parse_sample

MEMBER_COPIED = (
    "enqueued", "started", "completed", "p2p_enqueued", "history", "enqueued_ns", "completed_ns",
)  # fmt: skip
_NEWEST = 64
"""So many rows are looked through first for the main thread's newest call."""
_UNOBSERVABLE_TEXT = {
    Unobservable.CUDA_GRAPH: "CUDA graph replay",
    Unobservable.SYMMETRIC_MEMORY: "symmetric memory",
    Unobservable.BLOCKING_WAIT: "TORCH_NCCL_BLOCKING_WAIT=1 (completion is not recorded)",
}


def looks_like_ring(prefix: bytes) -> bool:
    """Whether a file that begins so is a ring of some version."""
    return prefix.startswith(layout.PREFIX)


def read_ring(
    path: str | os.PathLike[str],
    *,
    records: bool = True,
    shown: str = "",
    room: Room | None = None,
) -> Fragment:
    """One rank's ring.

    Parameters
    ----------
    path:
        The ring file; its writer may be alive, hung or long dead.
    records:
        False reads header and group table only.
    shown:
        The file's name as reports print it; the path by default.
    room:
        Gives the memory for the rows (see `hangscope.trace.row_block.RowBlock`).

    Raises
    ------
    hangscope.ring.reader.RingError
        If the file is no usable ring.
    OSError
        If it cannot be opened.
    """
    reader = OneTimeReader(path, room)
    try:
        return fragment_of(reader, records=records, lazy=True, shown=shown)
    finally:
        reader.close()


def fragment_of(
    reader: RingReader,
    *,
    records: bool = True,
    lazy: bool = False,
    shown: str = "",
    newest: int | None = None,
) -> Fragment:
    """The fragment of an open ring, as it is now; every text in it is fit to be printed.

    ``lazy``: stacks are decoded when somebody looks at them; ``newest``: so many records at most.
    """
    header = reader.header()
    rank = int(header["rank"])
    table = reader.groups()
    since = max(0, int(header["last_record_id"]) - newest) if newest is not None else 0
    slots, torn = reader.slots(since) if records else (np.zeros(0, SLOT), 0)
    values = RingValues(reader.values())  # after the slots: whatever they mention is there
    lost = torn + int(header["dropped"])
    oldest = int(slots["record_id"][0]) if len(slots) else 0
    rows, signatures, stacks = _records(values, slots, rank, len(table), lazy=lazy)
    call = _newest_call(rows, int(header["main_thread"]), stacks)
    facts = facts_of(reader, header, lost, oldest, call)
    return Fragment(
        source=Source(
            path=shown or str(reader.path),
            format=formats.RING,
            version=str(int(header["version"])),
            rank=rank,
            records=len(rows),
            dropped=lost,
        ),
        facts=facts,
        records=rows,
        members=_members(table, rank),
        groups=values.groups(table),
        signatures=signatures,
        stacks=stacks,
        warnings=tuple(_warnings(reader, header)),
        timeout_s=float(header["timeout_s"]),
        implied=counters_of(rows, len(table)) if len(rows) else None,
    )


def _warnings(reader: RingReader, header: Any) -> list[str]:
    name = reader.path.name
    warnings = []
    disabled = reader.text(int(header["disabled"]))
    if disabled:
        warnings.append(f"{name}: recording stopped early: {clean.name(disabled)}")
    if int(header["values_refused"]):
        warnings.append(
            f"{name}: the table of stacks and signatures is full; "
            f"{int(header['values_refused'])} later ones are missing"
        )
    if int(header["groups_refused"]):
        warnings.append(f"{name}: some process groups are missing, the table was full")
    return warnings


def _members(table: Records, rank: int) -> Records:
    members = np.zeros(len(table), MEMBER_DTYPE)
    members["rank"] = rank
    members["group"] = np.arange(len(table))
    for column in MEMBER_COPIED:
        members[column] = table[column]
    return members


def _records(
    values: RingValues, slots: Records, rank: int, group_count: int, *, lazy: bool
) -> tuple[Records, tuple[Signature, ...], Sequence[Stack]]:
    """Slots turned, where they lie, into trace records; with the signatures and stacks they use."""
    groups, signature_ids, stack_ids = _mentioned(slots)
    if len(groups) and (int(groups.min()) < 1 or int(groups.max()) > group_count):
        slots = slots[(groups >= 1) & (groups <= group_count)]
        groups, signature_ids, stack_ids = _mentioned(slots)
    used_signatures, signature = _used(signature_ids)
    used_stacks, stack = _used(stack_ids)
    if len(used_stacks) and used_stacks[0] == 0:
        stack[stack_ids == 0] = NONE
    signatures, signature = _fill_sizes(values.signatures(used_signatures), signature, slots)
    stacks = values.stacks(used_stacks)
    table = slots.view(RECORD_DTYPE)
    table["group"] = groups - np.uint32(1)
    table["signature"], table["stack"] = signature, stack
    table["thread"] = slots["thread"]
    table["rank"] = rank
    return table, signatures, stacks if lazy else tuple(stacks)


_SLOT_WORDS = SLOT.itemsize // 4
_MENTIONED = SLOT.fields["group"][1] // 4  # type: ignore[index]
assert SLOT.names is not None
assert SLOT.names[8:11] == ("group", "signature", "stack")


_DENSE = 1 << 20


def _used(ids: npt.NDArray[np.uint32]) -> tuple[Ids, npt.NDArray[np.int32]]:
    """The distinct ids of a column, ascending, and for each row the place of its id among them."""
    highest = int(ids.max(initial=0))
    if highest >= _DENSE:  # no ring's area is as large as that; the ids are invented
        distinct, place = np.unique(ids.astype(np.int64), return_inverse=True)
        return distinct, place.astype(np.int32)
    seen = np.zeros(highest + 1, np.bool_)
    seen[ids] = True
    distinct = np.flatnonzero(seen) if len(ids) else np.zeros(0, np.int64)
    places = np.empty(highest + 1, np.int32)
    places[distinct] = np.arange(len(distinct), dtype=np.int32)
    return distinct, places.take(ids)


def _mentioned(slots: Records) -> npt.NDArray[np.uint32]:
    """Group, signature and stack of all slots, copied out of them in one walk: shape (3, slots)."""
    words = np.ascontiguousarray(slots).view(np.uint32).reshape(-1, _SLOT_WORDS)
    return np.ascontiguousarray(words[:, _MENTIONED : _MENTIONED + 3].T)


def _fill_sizes(
    signatures: tuple[Signature, ...], place: npt.NDArray[np.int32], slots: Records
) -> tuple[tuple[Signature, ...], npt.NDArray[np.int32]]:
    """Give signatures whose sizes did not fit into the ring the sizes that stand in the records."""
    bare = [i for i, s in enumerate(signatures) if s.input_sizes is None and s.raw]
    if not bare:
        return signatures, place
    place = place.copy()
    extended = list(signatures)
    for index in bare:
        rows = np.flatnonzero(place == index)
        sizes = np.stack([slots["input_numel"][rows], slots["output_numel"][rows]], axis=1)
        for numels in np.unique(sizes, axis=0):
            extended.append(with_numels(signatures[index], int(numels[0]), int(numels[1])))
            place[rows[(sizes == numels).all(axis=1)]] = len(extended) - 1
    return tuple(extended), place


def with_numels(base: Signature, input_numel: int, output_numel: int) -> Signature:
    """A signature whose sizes did not fit into the ring, with the totals of one record."""
    return Signature(
        op=base.op, raw=base.raw, backend=base.backend, input_dtypes=base.input_dtypes,
        reduce_op=base.reduce_op, input_numel=input_numel, output_numel=output_numel,
    )  # fmt: skip


def facts_of(
    reader: RingReader,
    header: Any,
    dropped: int,
    oldest: int,
    call: ThreadStack | None = None,
) -> RankFacts:
    """What a ring's header says of its process, and a look at that process.

    Where the main thread made its newest ``call`` after its stack was last sampled, that is the
    newest place it is known to have been (it may have been stopped or killed since).
    """
    now_ns = time.time_ns()
    look = look_at(
        pid=int(header["pid"]),
        start_ticks=int(header["start_ticks"]),
        boot_id=decode_text(header["boot_id"]),
        pid_namespace=int(header["pid_namespace"]),
    )
    interval_s = float(header["heartbeat_interval_s"]) or 1.0
    heartbeat_ns = int(header["heartbeat_ns"])
    stale = now_ns - heartbeat_ns > 3 * interval_s * 1e9
    running = look.alive and look.state not in ("stopped", "zombie")
    gil_blocked = bool(stale) if running and not int(header["exit_ns"]) else None
    threads = _threads(reader)
    if call is not None and call.sampled_ns > max(
        (t.sampled_ns for t in threads if t.is_main), default=0
    ):
        threads += (call,)
    unobservable = int(header["unobservable"])
    return RankFacts(
        rank=int(header["rank"]),
        host=clean.name(decode_text(header["host"])) or None,
        pid=int(header["pid"]),
        local_rank=int(header["local_rank"]),
        node_rank=int(header["node_rank"]),
        world_size=int(header["world_size"]),
        attempt=int(header["attempt"]),
        run_id=clean.name(decode_text(header["run_id"])),
        alive=look.alive,
        process_state=look.state,
        heartbeat_ns=heartbeat_ns,
        heartbeat_interval_s=interval_s,
        gil_blocked=gil_blocked,
        phases=_phases(reader, header),
        initialized=bool(int(header["initialized"])),
        finalized=bool(int(header["finalized"])),
        exit=_exit(header, look),
        exception=_exception(reader, header),
        threads=threads,
        observed_ns=now_ns if look.alive else max(heartbeat_ns, int(header["exit_ns"])),
        started_ns=int(header["created_ns"]),
        dropped=dropped,
        oldest_record_id=oldest,
        clock_offset_ns=int(header["clock_offset_ns"]),
        unobservable=tuple(t for bit, t in _UNOBSERVABLE_TEXT.items() if unobservable & bit)
        if unobservable
        else (),
    )


def _newest_call(rows: Records, main_thread: int, stacks: Sequence[Stack]) -> ThreadStack | None:
    """Where the main thread issued its newest operation."""
    for part in (rows[-_NEWEST:], rows[:-_NEWEST]):
        found = np.flatnonzero((part["thread"] == main_thread) & (part["stack"] != NONE))
        if len(found):
            row = part[found[-1]]
            return main_call(stacks[int(row["stack"])], int(row["created_ns"]))
    return None


def main_call(stack: Stack, created_ns: int) -> ThreadStack:
    """Where the main thread was when it issued an operation."""
    return ThreadStack("MainThread", True, stack, created_ns, "record")


def _phases(reader: RingReader, header: Any) -> tuple[Phase, ...]:
    count = min(int(header["phase_count"]), layout.PHASE_DEPTH)
    return tuple(
        Phase(
            clean.name(reader.text(int(entry["name"]))),
            int(entry["since_ns"]),
            clean.prose(reader.text(int(entry["detail"]))),
        )
        for entry in header["phases"][:count]
    )


def _exit(header: Any, look: ProcessLook) -> ExitFacts | None:
    kind, code, at_ns = (
        int(header["exit_kind"]),
        int(header["exit_code"]),
        int(header["exit_ns"]),
    )
    if look.alive:
        return None  # on its way out at most: its phase says so, its status is not known yet
    if kind == ExitKind.NONE:
        if look.alive is False and not int(header["disabled"]):
            return ExitFacts("unknown", at_ns=0, text="gone without a word")
        return None
    names = {
        ExitKind.CLEAN: "clean",
        ExitKind.EXCEPTION: "exception",
        ExitKind.CODE: "code",
        ExitKind.HARD_EXIT: "clean" if code == 0 else "code",
    }
    text = f"os._exit({code})" if kind == ExitKind.HARD_EXIT else ""
    # ``raise SystemExit(3)`` leaves as quietly as the end of the script: only who waits for the
    # process knows its status.
    known = None if kind == ExitKind.CLEAN else code
    try:
        return ExitFacts(names[ExitKind(kind)], code=known, at_ns=at_ns, text=text)
    except ValueError:
        return ExitFacts("unknown", at_ns=at_ns)


def _exception(reader: RingReader, header: Any) -> ExceptionFacts | None:
    raw = reader.value(int(header["exception"]), ValueKind.EXCEPTION)
    if raw is None:
        return None
    try:
        fields = json.loads(raw)
        return ExceptionFacts(
            type_name=clean.name(str(fields["type"])),
            message=clean.prose(str(fields["message"])),
            stack=tuple(
                Frame(clean.name(str(name)), clean.name(str(file)), int(line))
                for name, file, line in fields["frames"]
            ),
            at_ns=int(header["exception_ns"]),
            thread_name=clean.name(str(fields["thread"])),
            is_main_thread=bool(fields["main"]),
            native_id=clean.as_int(fields.get("native_id"), 0, low=0),
        )
    except (ValueError, TypeError, KeyError):
        return None


@functools.lru_cache(16_384)
def _stacks_file(ring: str) -> str:
    """The file beside the real ring (which may be linked to) into which faulthandler writes."""
    folder, name = os.path.split(os.path.realpath(ring) if os.path.islink(ring) else ring)
    return os.path.join(folder, f".{os.path.splitext(name)[0]}.stacks")


def _threads(reader: RingReader) -> tuple[ThreadStack, ...]:
    """Sampled stacks, and the newer ones of the fault handler where the monitor asked for them."""
    sample = reader.sample()
    threads = parse_sample(sample.text, sample.at_ns) if sample else ()
    beside = _stacks_file(str(reader.path))
    try:
        status = os.stat(beside)
        if status.st_size > 0:
            text = Path(beside).read_text("utf-8", "replace")[-256 * 1024 :]
            main = next((t for t in threads if t.is_main), None)
            threads += parse_faulthandler(text, status.st_mtime_ns, main.name if main else "")
    except OSError:
        pass
    return threads


__all__ = ["fragment_of", "looks_like_ring", "read_ring"]
