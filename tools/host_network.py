"""Pretended hosts: network namespaces, linked by a switch that can be slow, lose packets or be cut.

The switch is a thread that carries IP packets between the hosts' tunnels, as the kernel's own means
to delay and lose packets (``tc netem``) is missing from many kernels. Needs root, ``ip`` (iproute2)
and ``/dev/net/tun``.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import subprocess
import threading
import time

ADDRESS = "10.78.0.{}"
_NAME_OF_TUNNEL = 0x400454CA
_TUNNEL_WITHOUT_HEADER = 0x1001
_MOST_BYTES = 65536
_AT_ONCE = 64


class Switch(threading.Thread):
    """Carries packets from host to host.

    Parameters
    ----------
    tunnels:
        File descriptor of each host's tunnel; host ``n`` has the address ``ADDRESS.format(n + 1)``.
    """

    def __init__(self, tunnels: list[int]) -> None:
        super().__init__(daemon=True)
        self.cut: set[int] = set()
        """Hosts to and from which nothing gets through."""
        self.delay_s = 0.0
        """How long a packet takes."""
        self.loss: dict[int, float] = {}
        """The share of the packets to a host that is lost."""
        self._tunnels = tunnels
        self._number_of = {tunnel: number for number, tunnel in enumerate(tunnels)}
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        self._is_over = False

    def run(self) -> None:
        ready = select.poll()
        for tunnel in self._tunnels:
            ready.register(tunnel, select.POLLIN)
        while not self._is_over:
            due_s = self._waiting[0][0] - time.monotonic() if self._waiting else 0.2
            for tunnel, _ in ready.poll(1000 * min(max(due_s, 0.0), 0.2)):
                self._take(tunnel)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, number, packet = heapq.heappop(self._waiting)
                with contextlib.suppress(OSError):  # the host is gone, or not up yet
                    os.write(self._tunnels[number], packet)

    def _take(self, tunnel: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(tunnel, _MOST_BYTES)
            except OSError:
                return
            to, sender = packet[19] - 1, self._number_of[tunnel]
            is_known = packet[0] >> 4 == 4 and packet[16:19] == b"\x0a\x4e\x00"
            if not is_known or not 0 <= to < len(self._tunnels) or self.cut & {to, sender}:
                continue
            if random.random() >= self.loss.get(to, 0.0):
                due_s = time.monotonic() + self.delay_s
                heapq.heappush(self._waiting, (due_s, next(self._order), to, packet))

    def end(self) -> None:
        """Carry nothing more."""
        self._is_over = True
        self.join()


class Hosts:
    """Namespaces with one link each, to a switch."""

    def __init__(self, count: int) -> None:
        self.names = [f"hs{os.getpid()}n{number}" for number in range(count)]
        self._tunnels: list[int] = []
        self.switch = Switch([])

    def __enter__(self) -> Hosts:
        try:
            for number, name in enumerate(self.names):
                self._make(number, name)
        except BaseException:
            self._remove()
            raise
        self.switch = Switch(self._tunnels)
        self.switch.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.switch.end()
        self._remove()

    def _make(self, number: int, name: str) -> None:
        tunnel = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self._tunnels.append(tunnel)
        how = struct.pack("16sH22x", name.encode(), _TUNNEL_WITHOUT_HEADER)
        fcntl.ioctl(tunnel, _NAME_OF_TUNNEL, how)
        _ip("netns", "add", name)
        _ip("link", "set", name, "netns", name)
        _ip("-n", name, "link", "set", name, "name", "eth0")
        _ip("-n", name, "addr", "add", ADDRESS.format(number + 1) + "/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for tunnel in self._tunnels:
            os.close(tunnel)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
