"""Elects the rank that starts a machine's monitor if no launcher assigns local ranks, or if local
rank 0 is late."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from hangscope.ring.header import RingHeader, decode_header
from hangscope.ring.layout import HEADER_BYTES
from hangscope.ring.process_identity import start_ticks
from hangscope.ring.run_directory import read_start


def is_local_leader(ring: Path) -> bool:
    """Whether this process was the first live one on this machine to record this attempt.

    ``ring`` is this process's. Two that begin at the same moment may both be leaders, which is
    harmless: their monitors report a cause only once.
    """
    own = _header(ring)
    return own is None or not any(_is_before(other, own) for other in _others(ring))


def is_local_rank_0_absent(ring: Path) -> bool:
    """Whether the process to which the launcher gave local rank 0 has not begun to record here."""
    own = _header(ring)
    return own is not None and not any(
        _life(other) == _life(own) and other.local_rank == 0 for other in _others(ring)
    )


def _others(ring: Path) -> Iterator[RingHeader]:
    headers = (_header(path) for path in ring.parent.glob("*.ring") if path != ring)
    return (header for header in headers if header is not None)


def _is_before(other: RingHeader, own: RingHeader) -> bool:
    return (
        _life(other) == _life(own)
        and other.pid != own.pid
        and (other.created_ns, other.pid) < (own.created_ns, own.pid)
        and 0 < other.start_ticks == start_ticks(other.pid)
    )


def _life(header: RingHeader) -> tuple[bytes, int, bytes, int]:
    """Identifies one attempt of one run on one machine."""
    return header.run_id, header.attempt, header.boot_id, header.pid_namespace


def _header(path: Path) -> RingHeader | None:
    try:
        return decode_header(read_start(path, HEADER_BYTES))
    except struct.error:
        return None
