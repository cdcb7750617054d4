"""Facts about a ring's process, from the ring's header and from observing the process."""

from __future__ import annotations

import errno
import functools
import json
import os
import stat
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hangscope.ring import portable
from hangscope.ring.header import RingHeader
from hangscope.ring.layout import LEAVING_PHASE, ExitKind, Unobservable, ValueKind
from hangscope.ring.process_identity import machine_id
from hangscope.ring.reader import RingReader, decode_text
from hangscope.ring.stack_requests import stacks_file
from hangscope.trace import clean
from hangscope.trace.facts import LEFT, STALE_HEARTBEATS, WITHOUT_A_WORD
from hangscope.trace.model import (
    ExceptionFacts,
    ExitFacts,
    Frame,
    KernelWait,
    Phase,
    RankFacts,
    Stack,
    ThreadStack,
)
from hangscope.trace.processes.file_locks import FileLocks
from hangscope.trace.processes.kernel_waits import exec_wait, main_thread_wait
from hangscope.trace.processes.process import ProcessLook, look_at
from hangscope.trace.processes.shared_memory import file_at
from hangscope.trace.processes.signals import WritesRing
from hangscope.trace.processes.suspension import (
    DUMPS_CORE,
    FREEZER,
    has_execed,
    is_dumping_core,
    is_frozen,
)
from hangscope.trace.rings.values import frame
from hangscope.trace.stack_dump import parse_faulthandler, parse_sample

_MOST_FRAMES = 256
_MOST_STACKS = 256 * 1024
"""Bytes read of what faulthandler has written: its end."""
_OPEN_STACKS = portable.READ_AT_ONCE | portable.NOFOLLOW
MAX_HEARTBEAT_INTERVAL_S = 3600.0
LocksNow = Callable[[Path], FileLocks]
_UNOBSERVABLE_TEXT = {
    Unobservable.CUDA_GRAPH: "CUDA graph replay",
    Unobservable.SYMMETRIC_MEMORY: "symmetric memory",
    Unobservable.BLOCKING_WAIT: "TORCH_NCCL_BLOCKING_WAIT=1 (completion is not recorded)",
}


class Texts(Protocol):
    """Provides the ring's interned texts: its reader, or its value area."""

    def text(self, identifier: int) -> str:
        """An interned text; empty if absent."""
        ...


def facts_of(
    reader: RingReader,
    header: RingHeader,
    dropped: int,
    oldest: int,
    *,
    rank: int | None = None,
    texts: Texts | None = None,
    newest_call: Callable[[int], ThreadStack | None] | None = None,
    look: ProcessLook | None = None,
    locks_now: LocksNow = FileLocks.now,
) -> RankFacts:
    """Facts about a ring's process, from its header and from observing the process now.

    Parameters
    ----------
    reader, header:
        The ring, and its current header.
    dropped, oldest:
        Number of lost records, and the id of the oldest one.
    rank:
        The process's rank in its job; the header's by default.
    texts:
        The ring's texts if they are already decoded; else they are read from the ring.
    newest_call:
        Returns the main thread's newest operation if it was issued after a given time (ns). If it
        is newer than the thread's last sampled stack, it is the last place where the thread is
        known to have been: it may have been stopped or killed since.
    look:
        At the process, if one was just taken.
    locks_now:
        Returns the file locks at this look.
    """
    now_ns = time.time_ns()
    seen = _observe(reader, header, now_ns, look, locks_now)
    look, threads = seen.look, seen.threads
    if newest_call is not None:
        call = newest_call(max((t.sampled_ns for t in threads if t.is_main), default=0))
        threads = threads if call is None else (*threads, call)
    unobservable = header.unobservable
    phases = _phases(texts or reader, header) if header.phase_count else ()
    exception = _exception(reader, header.exception, header.exception_ns)
    freed_ns = _freed_ns(exception, phases)
    return RankFacts(
        rank=header.rank if rank is None else rank,
        host=_name(header.host) or None,
        machine=machine_id(decode_text(header.boot_id), header.pid_namespace),
        pid=header.pid,
        local_rank=header.local_rank,
        node_rank=header.node_rank,
        world_size=header.world_size,
        declared=header.declared,
        rendezvous=clean.prose((texts or reader).text(header.rendezvous)) or None
        if header.rendezvous
        else None,
        parent_pid=header.parent_pid,
        attempt=header.attempt,
        run_id=_name(header.run_id),
        alive=look.alive,
        process_state=look.state,
        held_by=look.held_by,
        wait=seen.wait,
        heartbeat_ns=header.heartbeat_ns,
        heartbeat_interval_s=_interval_s(header),
        gil_blocked=seen.gil_blocked,
        phases=phases,
        initialized=bool(header.initialized),
        finalized=bool(header.finalized),
        exit=seen.end,
        freed_ns=freed_ns,
        exception=None if freed_ns else exception,
        handled=_exception(reader, header.handled, header.handled_ns),
        threads=threads,
        observed_ns=now_ns if look.alive else max(header.heartbeat_ns, header.exit_ns),
        started_ns=header.created_ns,
        dropped=dropped,
        oldest_record_id=oldest,
        clock_offset_ns=header.clock_offset_ns,
        device=clean.name((texts or reader).text(header.device)) if header.device else "",
        unobservable=tuple(t for bit, t in _UNOBSERVABLE_TEXT.items() if unobservable & bit)
        if unobservable
        else (),
    )


def writer_of(reader: RingReader) -> WritesRing:
    """The evidence that a process writes a mapped ring: it maps the file that is mapped here.

    What the kernel lists for both processes is compared, as file systems in layers have other
    numbers for ``stat``.
    """
    return WritesRing(file_at("self", reader.address))


@dataclass(frozen=True, slots=True)
class _Observation:
    """A process as it is now."""

    look: ProcessLook
    gil_blocked: bool | None
    end: ExitFacts | None
    wait: KernelWait | None
    threads: tuple[ThreadStack, ...]


def _observe(
    reader: RingReader,
    header: RingHeader,
    now_ns: int,
    look: ProcessLook | None,
    locks_now: LocksNow,
) -> _Observation:
    """Observe the process that writes a ring: a late heartbeat can mean several things."""
    look = look or look_at(
        pid=header.pid,
        start_ticks=header.start_ticks,
        boot_id=decode_text(header.boot_id),
        pid_namespace=header.pid_namespace,
    )
    stale = now_ns - header.heartbeat_ns > stale_after_ns(header)
    if stale and look.alive and look.state != "stopped" and is_frozen(header.pid):
        look = replace(look, state="stopped", held_by=FREEZER)
    running = look.alive and look.state not in ("stopped", "zombie")
    gil_blocked = bool(stale) if running and not header.exit_ns else None
    end = _exit(header, look)
    if gil_blocked and is_dumping_core(header.pid):
        end, gil_blocked = ExitFacts("signal", text=DUMPS_CORE), None
    wait = None
    if running:
        runs = look.state == "running"
        wait = main_thread_wait(header.pid, runs=runs, locks_now=locks_now)
    threads = _threads(reader, header.sample_generation)
    if gil_blocked and has_execed(header.pid, reader.name):
        gil_blocked, threads, wait = None, (), exec_wait(header.pid)
    if header.left_stack:
        threads = (*threads, _interrupted_stack(reader, header))
    return _Observation(look, gil_blocked, end, wait, threads)


def stale_after_ns(header: RingHeader) -> float:
    """The age of a heartbeat from which on it has stopped."""
    return STALE_HEARTBEATS * _interval_s(header) * 1e9


def _interval_s(header: RingHeader) -> float:
    """The interval between heartbeats; a number that no recorder writes counts as the usual one."""
    given_s = header.heartbeat_interval_s
    return given_s if 0.0 < given_s <= MAX_HEARTBEAT_INTERVAL_S else 1.0


def main_thread_call(stack: Stack, created_ns: int) -> ThreadStack:
    """Where the main thread was when it issued an operation."""
    return ThreadStack("MainThread", True, stack, created_ns, "record")


def _interrupted_stack(reader: RingReader, header: RingHeader) -> ThreadStack:
    """Where the main thread was before it began to exit."""
    raw = reader.value(header.left_stack, ValueKind.STACK) or b""
    ids = struct.unpack(f"<{len(raw) // 4}I", raw[: len(raw) // 4 * 4])[:_MOST_FRAMES]
    stack = tuple(frame(reader.value(i, ValueKind.FRAME) or b"") for i in ids)
    return ThreadStack("MainThread", True, stack, header.left_ns, LEFT)


@functools.lru_cache(4096)
def _name(field: bytes) -> str:
    return clean.name(decode_text(field))


def _phases(texts: Texts, header: RingHeader) -> tuple[Phase, ...]:
    return tuple(
        Phase(clean.name(texts.text(name)), since_ns, clean.prose(texts.text(detail)))
        for name, detail, since_ns in header.open_phases
    )


def _exit(header: RingHeader, look: ProcessLook) -> ExitFacts | None:
    kind, code, at_ns = header.exit_kind, header.exit_code, header.exit_ns
    if look.alive:
        return None  # it may be exiting, which its phase shows; its status is not known yet
    if kind == ExitKind.NONE:
        if look.alive is False and not header.disabled:
            return ExitFacts("unknown", at_ns=0, text=WITHOUT_A_WORD)
        return None
    names = {
        ExitKind.CLEAN: "clean",
        ExitKind.EXCEPTION: "exception",
        ExitKind.CODE: "code",
        ExitKind.HARD_EXIT: "clean" if code == 0 else "code",
    }
    text = f"os._exit({code})" if kind == ExitKind.HARD_EXIT else ""
    # ``raise SystemExit(3)`` looks like the end of the script from inside: only the process that
    # waits for this one knows its status.
    known = None if kind == ExitKind.CLEAN else code
    try:
        return ExitFacts(names[ExitKind(kind)], code=known, at_ns=at_ns, text=text)
    except ValueError:
        return ExitFacts("unknown", at_ns=at_ns)


def _exception(reader: RingReader, identifier: int, at_ns: int) -> ExceptionFacts | None:
    raw = reader.value(identifier, ValueKind.EXCEPTION) if identifier else None
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
            at_ns=at_ns,
            thread_name=clean.name(str(fields["thread"])),
            is_main_thread=bool(fields["main"]),
            native_id=clean.as_int(fields.get("native_id"), 0, low=0),
        )
    except (ValueError, TypeError, KeyError):
        return None


def _freed_ns(exception: ExceptionFacts | None, phases: tuple[Phase, ...]) -> int:
    """`RankFacts.freed_ns`: when an interrupt arrived after the program was over."""
    if exception is None or not (exception.is_main_thread and exception.is_interrupt):
        return 0
    over = next((phase.since_ns for phase in phases if phase.name == LEAVING_PHASE), 0)
    return exception.at_ns if 0 < over < exception.at_ns else 0


@functools.lru_cache(16_384)
def _stacks_file(ring: str) -> str:
    """The file beside the real ring (not a link to it) that faulthandler writes to."""
    return stacks_file(os.path.realpath(ring) if os.path.islink(ring) else ring)


def _threads(reader: RingReader, generation: int) -> tuple[ThreadStack, ...]:
    """Sampled stacks, and newer ones from faulthandler if the monitor has requested them."""
    sample = reader.sample() if generation else None
    threads = parse_sample(sample.text, sample.at_ns) if sample else ()
    beside = _stacks_file(reader.name)
    try:
        # The file rarely exists, and access() is cheaper than an exception.
        if os.access(beside, os.R_OK):
            text, at_ns = _end_of(beside, reader.owner)
            main = next((t for t in threads if t.is_main), None)
            if text:
                threads += parse_faulthandler(text, at_ns, main.name if main else "")
    except OSError:
        pass
    return threads


def _end_of(beside: str, owner: int) -> tuple[str, int]:
    """The end of a regular file of this user without another name, and when it was written (ns).

    Raises
    ------
    OSError
        If it is missing, or anything else.
    """
    if os.open in os.supports_dir_fd:
        folder = os.open(os.path.dirname(beside) or ".", portable.READ | portable.DIRECTORY)
        try:
            file = os.open(os.path.basename(beside), _OPEN_STACKS, dir_fd=folder)
        finally:
            os.close(folder)
    else:
        file = os.open(beside, _OPEN_STACKS)
    try:
        status = os.fstat(file)
        is_own = status.st_uid == owner and status.st_nlink <= 1
        if not (is_own and stat.S_ISREG(status.st_mode)):
            raise PermissionError(errno.EPERM, "not the recorder's file", beside)
        raw = portable.read_at(file, _MOST_STACKS, max(0, status.st_size - _MOST_STACKS))
        return raw.decode("utf-8", "replace"), status.st_mtime_ns
    finally:
        os.close(file)
