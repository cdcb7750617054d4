"""Errors that devices report while ranks wait: said at once, as no patience mends them.

A child reads the kernel's log, once per stall, and is never waited for.
"""

from __future__ import annotations

import subprocess
import sys

from hangscope.monitor.hardware.evidence import has_devices
from hangscope.monitor.hardware.signs import from_json

RECENT_S = 60.0
"""Older errors had not kept the job from going on."""
_MOST = 2
_PROBE = (sys.executable, "-m", "hangscope.monitor.hardware.probe", "--errors", str(RECENT_S))


class DeviceErrors:
    """Asks for errors of this node's devices.

    Parameters
    ----------
    command:
        Prints signs (`to_json`).
    """

    def __init__(self, command: tuple[str, ...] = _PROBE) -> None:
        self._command = command
        self._asked = False
        self._child: subprocess.Popen[bytes] | None = None

    def news(self, *, waits: bool) -> str:
        """What devices have reported lately, the first time it is known in a stall; else empty.

        ``waits``: whether ranks wait for unusually long.
        """
        if not waits:
            self._end()
            self._asked = False
            return ""
        if not self._asked:
            self._asked = True
            self._begin()
            return ""
        if self._child is None or self._child.poll() is None:
            return ""
        output, _ = self._child.communicate()
        self._child = None
        return "; ".join(sign.text for sign in from_json(output)[-_MOST:])

    def _begin(self) -> None:
        if not has_devices():
            return
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self._child = None

    def _end(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.kill()  # reading the kernel's log does not hang, so it ends
            self._child.communicate()
        self._child = None
