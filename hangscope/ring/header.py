"""The header of a ring as plain Python values, decoded by one call.

numpy returns the fields of a structured value one by one, at a tenth of a microsecond each, and
readers of thousands of rings want half of a header's seventy fields.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from hangscope.ring.layout import HEADER, PHASE, PHASE_DEPTH, RingFlag


class RingHeader(NamedTuple):
    """A snapshot of a header: the fields of `hangscope.ring.layout.HEADER`, in their order.

    Texts are bytes, padded with zeros (`hangscope.ring.reader.decode_text`).
    """

    magic: bytes
    version: int
    header_bytes: int
    slot_bytes: int
    slot_count: int
    group_bytes: int
    group_count: int
    groups_offset: int
    slots_offset: int
    samples_offset: int
    sample_bytes: int
    values_offset: int
    values_bytes: int
    file_bytes: int
    run_id: bytes
    host: bytes
    boot_id: bytes
    torch_version: bytes
    python_version: bytes
    cwd: bytes
    attempt: int
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    pid: int
    parent_pid: int
    start_ticks: int
    pid_namespace: int
    created_ns: int
    timeout_s: float
    heartbeat_interval_s: float
    flags: int
    seal: bytes
    ready: int
    phase_count: int
    heartbeat_ns: int
    heartbeat_count: int
    last_record_id: int
    dropped: int
    values_used: int
    values_refused: int
    groups_used: int
    groups_refused: int
    sample_generation: int
    sample_ns: int
    initialized: int
    finalized: int
    exit_kind: int
    exit_code: int
    exit_signal: int
    exception: int
    exit_ns: int
    exception_ns: int
    fault_signal: int
    unobservable: int
    disabled: int
    clock_offset_ns: int
    main_thread: int
    backend: int
    watcher_thread: int
    rendezvous: int
    left_stack: int
    left_ns: int
    handled_ns: int
    handled: int
    device: int
    phases: bytes
    """All `PHASE_DEPTH` entries; `open_phases` gives those in use."""

    @property
    def declared(self) -> bool:
        """Whether rank and world size come from the job itself (see `RingFlag.DECLARED`)."""
        return bool(self.flags & RingFlag.DECLARED or self.initialized or self.finalized)

    @property
    def open_phases(self) -> list[tuple[int, int, int]]:
        """Open phases, outermost first: (name id, detail id, start time in ns)."""
        count = min(self.phase_count, PHASE_DEPTH)
        return list(_PHASE.iter_unpack(self.phases[: count * _PHASE.size]))


_PHASE = struct.Struct("<IIq")
assert _PHASE.size == PHASE.itemsize
assert HEADER.names == RingHeader._fields
_CODES = {"u4": "I", "i4": "i", "u8": "Q", "i8": "q", "f8": "d"}


def _format() -> str:
    """`HEADER` as a `struct` format, up to its last field."""
    fields = HEADER.fields
    assert fields is not None
    parts, end = ["<"], 0
    for name in RingHeader._fields:
        kind, at = fields[name][:2]
        parts.append(f"{at - end}x")
        parts.append(_CODES.get(kind.str[1:], f"{kind.itemsize}s"))
        end = at + kind.itemsize
    return "".join(parts)


_HEADER = struct.Struct(_format())


def decode_header(raw: bytes) -> RingHeader:
    """The header in a file's first bytes.

    Raises
    ------
    struct.error
        If there are fewer bytes than a header has.
    """
    return RingHeader._make(_HEADER.unpack_from(raw))
