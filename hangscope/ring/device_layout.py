"""The binary layout of a device ring: what NCCL's profiler plugin writes beside a rank's ring.

::

    header          one `HEADER`, 4096 bytes
    communicators   `communicator_count` x `COMMUNICATOR`, in the order of their creation
    operations      `operation_count` x `OPERATION`, a ring: id n lies in place (n - 1) % count
    links           `link_count` x `LINK`, a ring likewise: what proxies send and receive

The same structs stand in ``hangscope/nccl_plugin/src/device_ring.h``. An entry of a ring is valid
when its first and last fields, both its id, agree: the last is written last, with release
semantics, and set to 0 before the entry is overwritten.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from pathlib import Path

import numpy as np

MAGIC = b"HSNCCL\x00\x01"
PREFIX = b"HSNCCL"
VERSION = 1
HEADER_BYTES = 4096
SUFFIX = ".device"
MOST_ENTRIES = 1 << 20
"""No plugin makes larger tables."""
PATH_VARIABLE = "HANGSCOPE_INTERNAL_DEVICE_RING"
"""Environment variable with ``PID:PATH``: which process writes which file, an absolute path."""

FIXED_START = struct.Struct("<8s8I4Qq2I")
"""The header from ``magic`` to ``interface``; see `HEADER_FIELDS`."""
HEADER_FIELDS = (
    "magic", "version", "header_bytes", "communicator_bytes", "communicator_count",
    "operation_bytes", "operation_count", "link_bytes", "link_count", "communicators_at",
    "operations_at", "links_at", "file_bytes", "created_ns", "pid", "interface",
)  # fmt: skip
COMMUNICATORS_USED_AT = 1024
COMMUNICATORS_REFUSED_AT = 1032
OPERATIONS_USED_AT = 1088
LINKS_USED_AT = 1152

COMMUNICATOR = np.dtype(
    [
        ("commit", "<u4"),  # 1 once the entry is complete
        ("ranks", "<i4"),  # 0: not told, by version 3 of the interface
        ("rank", "<i4"),
        ("nodes", "<i4"),
        ("hash", "<u8"),  # the same on all members
        ("created_ns", "<i8"),
        ("destroyed_ns", "<i8"),
        ("collectives", "<u8"),  # ever enqueued, those of replays apart
        ("pairs", "<u8"),  # sends and receives
        ("replays", "<u8"),  # collectives of replays
        ("proxy_ns", "<i8"),  # the newest event from a proxy thread; 0: none
        ("proxy_state", "<u4"),
        ("reserved", "<u4"),
        ("name", "S48"),
    ]
)
OPERATION = np.dtype(
    [
        ("id", "<u8"),
        ("seq", "<u8"),  # per communicator and function, from 0
        ("count", "<u8"),  # elements
        ("enqueued_ns", "<i8"),
        ("begun_ns", "<i8"),  # host clock when the device was seen to begin; 0: not yet
        ("ended_ns", "<i8"),  # ... to have ended on all channels
        ("device_begun_ns", "<u8"),  # device clock; stale for a replay
        ("device_ended_ns", "<u8"),
        ("communicator", "<u4"),  # index + 1
        ("root_or_peer", "<i4"),
        ("channels", "<u2"),  # 0: not told
        ("channels_begun", "<u2"),
        ("channels_ended", "<u2"),
        ("flags", "<u2"),
        ("func", "S16"),
        ("datatype", "S12"),
        ("algorithm", "S12"),
        ("commit", "<u8"),
    ]
)
LINK = np.dtype(
    [
        ("id", "<u8"),
        ("operation", "<u8"),
        ("changed_ns", "<i8"),
        ("peer", "<i4"),  # rank in the communicator
        ("channel", "<u2"),
        ("is_send", "u1"),
        ("state", "u1"),
        ("steps", "<u4"),
        ("steps_begun", "<u4"),
        ("steps_ended", "<u4"),
        ("communicator", "<u4"),
        ("created_ns", "<i8"),
        ("commit", "<u8"),
    ]
)
assert COMMUNICATOR.itemsize == OPERATION.itemsize == 128
assert LINK.itemsize == 64


class OperationFlag(IntFlag):
    """What else is known of an operation."""

    P2P = 1
    """A send or recv."""
    REPLAYED = 2
    """Enqueued by a graph's replay: the times of its channels are those of an earlier run."""
    GRAPH_UNKNOWN = 4
    """Before version 5 of the interface, NCCL does not tell what a graph has captured."""


class LinkState(IntEnum):
    """NCCL's numbers for what the newest step of a proxy waits for."""

    NONE = 0
    SEND_GPU = 8
    SEND_PEER = 20
    SEND = 9
    RECEIVE = 10
    RECEIVE_FLUSH = 11
    RECEIVE_GPU = 12


def device_file(ring: str) -> str:
    """The name of the device ring beside a ring: the same with another suffix."""
    return ring.removesuffix(".ring") + SUFFIX


def device_path(ring: Path) -> Path:
    """The device ring beside a ring."""
    return ring.with_name(device_file(ring.name))
