"""What is abnormal about this node's devices and links: notes, and claims for the diagnosis.

Drivers can hang on the very device that is broken, so a child asks them, and is left alone if it
takes too long. A node without devices or fast links asks nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hangscope.diagnosis.model import Diagnosis
from hangscope.monitor.hardware.signs import Sign, from_json
from hangscope.trace.external_reports.journal import failed_device
from hangscope.trace.model import Claim, Trace
from hangscope.trace.units import SECOND_NS

LIMIT_S = 5.0
MOST_LINES = 8
_SIGNS = ("/dev/nvidiactl", "/dev/kfd", "/sys/class/infiniband")
_PROBE = (sys.executable, "-m", "hangscope.monitor.hardware.probe")


class Hardware:
    """This node's devices and links, asked when a hang is reported.

    Parameters
    ----------
    command:
        Prints signs (`hangscope.monitor.hardware.signs.to_json`).
    limit_s:
        Time after which it is left alone.
    """

    def __init__(self, command: tuple[str, ...] = _PROBE, limit_s: float = LIMIT_S) -> None:
        self._command = command
        self._limit_s = limit_s
        self._said: set[str] = set()

    def signs(self) -> list[Sign]:
        """What is abnormal about this node and has not been told yet; empty without devices."""
        if not has_devices():
            return []
        signs = [s for s in gathered(self._command, self._limit_s) if s.text not in self._said]
        self._said.update(sign.text for sign in signs)
        return signs


def noted(diagnosis: Diagnosis, signs: Sequence[Sign]) -> Diagnosis:
    """The diagnosis with a note for each sign, up to a limit."""
    lines = tuple(sign.text for sign in signs[:MOST_LINES])
    return replace(diagnosis, notes=(*diagnosis.notes, *lines))


def failed_devices(signs: Iterable[Sign], trace: Trace, here: Iterable[int]) -> list[Claim]:
    """What the signs say of devices that do no more work, by rank.

    ``here``: ranks whose node the signs are of; other nodes' devices may have the same addresses.
    """
    of_device: dict[str, list[int]] = {}
    for rank in sorted(here):
        if rank in trace.ranks and trace.ranks[rank].device:
            of_device.setdefault(trace.ranks[rank].device, []).append(rank)
    return [
        failed_device(rank, trace.observed_ns - int(sign.ago_s * SECOND_NS), sign.text)
        for sign in signs
        if sign.ago_s is not None
        for rank in of_device.get(sign.device, ())
    ]


def gathered(command: tuple[str, ...], limit_s: float) -> list[Sign]:
    """What a probe prints; that it does not answer is a sign, too."""
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return []
    try:
        output, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()  # not waited for: in a driver's call it may never end
        return [Sign(f"a driver of this node's devices did not answer within {limit_s:g} s")]
    return from_json(output)


def has_devices() -> bool:
    """Whether this node has devices or fast links at all."""
    for sign in map(Path, _SIGNS):
        try:
            if any(sign.iterdir()) if sign.is_dir() else sign.exists():
                return True
        except OSError:
            continue
    return False
