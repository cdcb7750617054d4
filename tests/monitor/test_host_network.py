"""The switch between pretended hosts: the cases mean nothing if links are not as they say."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tools.host_network import Switch

FROM, TO = 0, 1
PACKET = bytes([0x45, *range(1, 16), 10, 78, 0, TO + 1])
"""An IP header with the address of the second host."""


@pytest.fixture
def ends() -> Iterator[tuple[Switch, list[socket.socket]]]:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for host, tunnel in pairs:
        tunnel.setblocking(False)
        host.settimeout(2.0)
    switch = Switch([tunnel.fileno() for _, tunnel in pairs])
    switch.start()
    yield switch, [host for host, _ in pairs]
    switch.end()
    for pair in pairs:
        for one in pair:
            one.close()


def _arrived(hosts: list[socket.socket], sent: int, packet: bytes = PACKET) -> int:
    """How many of so many packets arrive."""
    count = 0
    for _ in range(sent):
        hosts[FROM].send(packet)
        time.sleep(0.002)
    try:
        while count < sent:
            assert hosts[TO].recv(100) == packet
            count += 1
    except TimeoutError:
        pass
    return count


def test_packets_arrive(ends: tuple[Switch, list[socket.socket]]) -> None:
    assert _arrived(ends[1], 5) == 5
    assert _arrived(ends[1], 5, PACKET[:-1] + b"\x09") == 0, "nobody has that address"
    assert _arrived(ends[1], 5, b"\x60" * 40) == 0, "another protocol"


def test_packets_are_late(ends: tuple[Switch, list[socket.socket]]) -> None:
    switch, hosts = ends
    switch.delay_s = 1.0
    began_s = time.monotonic()
    hosts[TO].settimeout(60)
    assert _arrived(hosts, 1) == 1
    assert time.monotonic() - began_s >= 1.0


def test_packets_are_lost(ends: tuple[Switch, list[socket.socket]]) -> None:
    switch, hosts = ends
    switch.loss = {TO: 0.5}
    assert 0 < _arrived(hosts, 100) < 100


@pytest.mark.parametrize("host", [FROM, TO])
def test_link_is_cut_and_comes_back(ends: tuple[Switch, list[socket.socket]], host: int) -> None:
    switch, hosts = ends
    switch.cut.add(host)
    assert _arrived(hosts, 5) == 0
    switch.cut.clear()
    assert _arrived(hosts, 5) == 5
