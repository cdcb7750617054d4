"""Reads a HangScope ring as a `Fragment`: a map, a few column copies, no parsing of records."""

from __future__ import annotations

import functools
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hangscope.ring import layout
from hangscope.ring.layout import ExitKind, Unobservable, ValueKind
from hangscope.ring.reader import RingReader, decode_text
from hangscope.trace.model import (
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    ExceptionFacts,
    ExitFacts,
    Fragment,
    Frame,
    Group,
    Phase,
    RankFacts,
    Records,
    Signature,
    Source,
    Stack,
    ThreadStack,
)
from hangscope.trace.process import ProcessLook, look_at
from hangscope.trace.ring_values import values_of
from hangscope.trace.stack_dump import parse_faulthandler, parse_sample

FORMAT = "hangscope-ring"
_COPIED = (
    "collective_seq", "p2p_seq", "op_id", "record_id", "peer", "root", "created_ns", "started_ns",
    "completed_ns", "history", "thread", "timeout_ms", "state", "flags",
)  # fmt: skip
_UNOBSERVABLE_TEXT = {
    Unobservable.CUDA_GRAPH: "CUDA graph replay",
    Unobservable.SYMMETRIC_MEMORY: "symmetric memory",
    Unobservable.BLOCKING_WAIT: "TORCH_NCCL_BLOCKING_WAIT=1 (completion is not recorded)",
}


def looks_like_ring(prefix: bytes) -> bool:
    """Whether a file that begins so is a ring of some version."""
    return prefix.startswith(layout.PREFIX)


def read_ring(path: str | os.PathLike[str], *, records: bool = True) -> Fragment:
    """One rank's ring.

    Parameters
    ----------
    path:
        The ring file; its writer may be alive, hung or long dead.
    records:
        False reads header and group table only.

    Raises
    ------
    hangscope.ring.reader.RingError
        If the file is no usable ring.
    OSError
        If it cannot be opened.
    """
    reader = RingReader(path)
    try:
        return fragment_of(reader, records=records)
    finally:
        reader.close()


def fragment_of(reader: RingReader, *, records: bool = True) -> Fragment:
    """The fragment of an open ring, as it is now."""
    header = reader.header()
    rank = int(header["rank"])
    warnings: list[str] = []
    slots, torn = reader.slots() if records else (np.zeros(0, layout.SLOT), 0)
    lost = torn + int(header["dropped"])
    groups, members = _groups(reader, rank)
    table, signatures, stacks = _records(reader, slots, rank, len(groups))
    disabled = reader.text(int(header["disabled"]))
    if disabled:
        warnings.append(f"{reader.path.name}: recording stopped early: {disabled}")
    if int(header["values_refused"]):
        warnings.append(
            f"{reader.path.name}: the table of stacks and signatures is full; "
            f"{int(header['values_refused'])} later ones are missing"
        )
    if int(header["groups_refused"]):
        warnings.append(f"{reader.path.name}: some process groups are missing, the table was full")
    facts = facts_of(reader, header, lost, int(slots["record_id"][0]) if len(slots) else 0)
    facts = _with_newest_call(facts, slots, table, stacks, int(header["main_thread"]))
    source = Source(
        path=str(reader.path),
        format=FORMAT,
        version=str(int(header["version"])),
        rank=rank,
        records=len(slots),
        dropped=lost,
    )
    return Fragment(
        source=source,
        facts=facts,
        records=table,
        members=members,
        groups=groups,
        signatures=signatures,
        stacks=stacks,
        warnings=tuple(warnings),
        timeout_s=float(header["timeout_s"]),
    )


def _groups(reader: RingReader, rank: int) -> tuple[tuple[Group, ...], Records]:
    table = reader.groups()
    groups = []
    members = np.zeros(len(table), MEMBER_DTYPE)
    for index, entry in enumerate(table):
        raw = reader.value(int(entry["ranks"]), ValueKind.RANKS) or b""
        ranks = tuple(np.frombuffer(raw[: len(raw) // 4 * 4], "<i4").tolist())
        groups.append(
            Group(
                name=reader.text(int(entry["name"])),
                desc=reader.text(int(entry["desc"])),
                ranks=ranks,
                epoch=int(entry["epoch"]),
                backend=reader.text(int(entry["backend"])),
                size=int(entry["size"]),
            )
        )
        members["group"][index] = index
    members["rank"] = rank
    for column in ("enqueued", "started", "completed", "p2p_enqueued", "history", "enqueued_ns",
                   "completed_ns"):  # fmt: skip
        members[column] = table[column]
    return tuple(groups), members


def _records(
    reader: RingReader, slots: Records, rank: int, group_count: int
) -> tuple[Records, tuple[Signature, ...], tuple[Stack, ...]]:
    """Slots as trace records, with the signatures and stacks they use."""
    known = (slots["group"] >= 1) & (slots["group"] <= group_count)
    if not known.all():
        slots = slots[known]
    table = np.zeros(len(slots), RECORD_DTYPE)
    table["rank"] = rank
    table["group"] = slots["group"].astype(np.int32) - 1
    for column in _COPIED:
        table[column] = slots[column]
    signature_ids, table["signature"] = np.unique(slots["signature"], return_inverse=True)
    stack_ids, stack_index = np.unique(slots["stack"], return_inverse=True)
    table["stack"] = np.where(stack_ids[stack_index] == 0, NONE, stack_index)
    values = values_of(reader.values())
    signatures = tuple(values.signature(identifier) for identifier in signature_ids.tolist())
    signatures, table = _fill_sizes(signatures, table, slots)
    stacks = tuple(values.stack(identifier) for identifier in stack_ids.tolist())
    return table, signatures, stacks


def _fill_sizes(
    signatures: tuple[Signature, ...], table: Records, slots: Records
) -> tuple[tuple[Signature, ...], Records]:
    """Give signatures whose sizes did not fit into the ring the sizes that stand in the records."""
    bare = [i for i, s in enumerate(signatures) if s.input_sizes is None and s.raw]
    if not bare:
        return signatures, table
    extended = list(signatures)
    for index in bare:
        rows = np.flatnonzero(table["signature"] == index)
        sizes = np.stack([slots["input_numel"][rows], slots["output_numel"][rows]], axis=1)
        for numels in np.unique(sizes, axis=0):
            base = signatures[index]
            extended.append(
                Signature(
                    op=base.op, raw=base.raw, backend=base.backend, input_dtypes=base.input_dtypes,
                    reduce_op=base.reduce_op, input_numel=int(numels[0]),
                    output_numel=int(numels[1]),
                )
            )  # fmt: skip
            table["signature"][rows[(sizes == numels).all(axis=1)]] = len(extended) - 1
    return tuple(extended), table


def facts_of(reader: RingReader, header: Any, dropped: int, oldest: int) -> RankFacts:
    """What a ring's header says of its process, and a look at that process."""
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
    return RankFacts(
        rank=int(header["rank"]),
        host=decode_text(header["host"]) or None,
        pid=int(header["pid"]),
        local_rank=int(header["local_rank"]),
        node_rank=int(header["node_rank"]),
        world_size=int(header["world_size"]),
        attempt=int(header["attempt"]),
        run_id=decode_text(header["run_id"]),
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
        threads=_threads(reader),
        observed_ns=now_ns if look.alive else max(heartbeat_ns, int(header["exit_ns"])),
        dropped=dropped,
        oldest_record_id=oldest,
        clock_offset_ns=int(header["clock_offset_ns"]),
        unobservable=tuple(
            text for bit, text in _UNOBSERVABLE_TEXT.items() if int(header["unobservable"]) & bit
        ),
    )


def _with_newest_call(
    facts: RankFacts, slots: Records, table: Records, stacks: tuple[Stack, ...], main_thread: int
) -> RankFacts:
    """Where the main thread issued its newest operation after its stack was last sampled, that call
    is the newest place it is known to have been (it may have been stopped or killed since)."""
    if not len(table) or len(table) != len(slots):
        return facts
    rows = np.flatnonzero((slots["thread"] == main_thread) & (table["stack"] != NONE))
    if not len(rows):
        return facts
    row = table[rows[-1]]
    sampled_ns = max((t.sampled_ns for t in facts.threads if t.is_main), default=0)
    if int(row["created_ns"]) <= sampled_ns:
        return facts
    newest = ThreadStack(
        "MainThread", True, stacks[int(row["stack"])], int(row["created_ns"]), "record"
    )
    return replace(facts, threads=(*facts.threads, newest))


def _phases(reader: RingReader, header: Any) -> tuple[Phase, ...]:
    count = min(int(header["phase_count"]), layout.PHASE_DEPTH)
    return tuple(
        Phase(
            reader.text(int(entry["name"])),
            int(entry["since_ns"]),
            reader.text(int(entry["detail"])),
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
    try:
        return ExitFacts(names[ExitKind(kind)], code=code, at_ns=at_ns, text=text)
    except ValueError:
        return ExitFacts("unknown", at_ns=at_ns)


def _exception(reader: RingReader, header: Any) -> ExceptionFacts | None:
    raw = reader.value(int(header["exception"]), ValueKind.EXCEPTION)
    if raw is None:
        return None
    try:
        fields = json.loads(raw)
        return ExceptionFacts(
            type_name=str(fields["type"]),
            message=str(fields["message"]),
            stack=tuple(Frame(str(n), str(f), int(line)) for n, f, line in fields["frames"]),
            at_ns=int(header["exception_ns"]),
            thread_name=str(fields["thread"]),
            is_main_thread=bool(fields["main"]),
        )
    except (ValueError, TypeError, KeyError):
        return None


@functools.lru_cache(16_384)
def _stacks_file(ring: str) -> str:
    """The file beside the real ring (which may be linked to) into which faulthandler writes."""
    folder, name = os.path.split(os.path.realpath(ring))
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


__all__ = ["FORMAT", "fragment_of", "looks_like_ring", "read_ring"]
