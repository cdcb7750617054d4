"""Notes which device a rank computes on, by its PCI address: so the kernel's log names devices."""

from __future__ import annotations

from collections.abc import Callable

from hangscope.ring.writer import RingWriter


class DeviceName:
    """Writes the address of a rank's device to its ring, once it is known.

    Parameters
    ----------
    ring:
        Of this process.
    index:
        Torch's number of the device of the first operation on one; -1 before that.
    """

    def __init__(self, ring: RingWriter, index: Callable[[], int]) -> None:
        self._ring = ring
        self._index = index
        self._is_noted = False

    def note(self) -> None:
        """Look whether it is known by now; at most one look at the device's properties."""
        index = -1 if self._is_noted else self._index()
        if index < 0:
            return
        self._is_noted = True
        if address := _address(index):
            self._ring.put_u4("device", self._ring.text(address))


def _address(index: int) -> str:
    """``domain:bus:device`` in hexadecimal, as in the kernel's log; empty if torch does not say."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ""
    found = torch.cuda.get_device_properties(index)
    parts = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    known = [int(part) for part in parts if part is not None]
    return "{:04x}:{:02x}:{:02x}".format(*known) if len(known) == len(parts) else ""
