"""Ports for the stores of jobs that are about to start."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000


def free_port() -> int:
    """A TCP port of this host that no socket has, and that the kernel gives to nobody by itself.

    A port from ``bind(0)`` is free only until the next connection of anybody: seconds pass before
    a job's store listens there, and with a few jobs side by side one of a thousand found it taken.
    """
    ephemeral = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    while True:
        port = random.SystemRandom().randrange(_LOWEST, max(ephemeral, _LOWEST + 1_000))
        with socket.socket(
            socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        ) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
