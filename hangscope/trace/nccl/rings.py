"""Finds and reads the device ring that belongs to a ring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hangscope.ring.checks import RingError
from hangscope.ring.device_reader import (
    DeviceRing,
    find_device_ring,
    operations_noted,
    read_device_ring,
)
from hangscope.trace.model import Fragment


def with_device_ring(fragment: Fragment, ring: str) -> Fragment:
    """The fragment of a ring with what NCCL told in the same process; unusable files are named."""
    found = find_device_ring(ring)
    if found is None:
        return fragment
    try:
        device = read_device_ring(found)
    except (RingError, OSError) as error:
        line = f"{found.name} is not used: {error}"
        return replace(fragment, warnings=(*fragment.warnings, line))
    if not belongs(device, fragment.facts.pid):
        return fragment
    return replace(fragment, device=device)


def device_ring_of(ring: str, pid: int) -> DeviceRing | None:
    """What NCCL has told up to now in a process that writes a ring; None without a usable file."""
    found = find_device_ring(ring)
    if found is None:
        return None
    try:
        device = read_device_ring(found)
    except (RingError, OSError):
        return None
    return device if belongs(device, pid) else None


def noted_in(ring: str) -> int:
    """How many operations NCCL has told of in the process that writes a ring; 0 if of none."""
    found = find_device_ring(ring)
    try:
        return operations_noted(found) if found is not None else 0
    except OSError:
        return 0


def belongs(device: DeviceRing, pid: int | None) -> bool:
    """Whether the same process wrote it."""
    return pid is None or device.pid == pid


def fingerprint_of(devices: Mapping[int, DeviceRing | None]) -> bytes:
    """Bytes that change whenever NCCL tells something new of a rank; empty if it tells nothing."""
    return b"".join(device.operations.tobytes() for device in devices.values() if device)
