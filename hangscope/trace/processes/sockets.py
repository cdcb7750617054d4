"""Who is at the other end of a process's socket."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hangscope.trace.processes.descriptors import holder_of, target_of
from hangscope.trace.processes.procfs import PROC, lines_of

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_LISTENS = "0A"
_CONNECTING = "02"
_UNOWNED = "0"
"""The inode of a connection that no process has accepted yet."""


@dataclass(frozen=True, slots=True)
class Peer:
    """``what``: an address, or a description of any other socket.

    ``process``: the one at the other end, if it runs on this machine and can be seen.
    """

    what: str
    process: int | None = None


@dataclass(frozen=True, slots=True)
class _Socket:
    """An internet socket, with its addresses as the kernel writes them."""

    local: str
    remote: str
    state: str
    inode: str

    def is_connected_to(self, other: _Socket) -> bool:
        """Whether ``other`` is its other end. One of them may write IPv4 addresses as IPv6."""
        ports = (_port(self.local), _port(self.remote)) == (_port(other.remote), _port(other.local))
        return ports and (_address(self.local), _address(self.remote)) == (
            _address(other.remote),
            _address(other.local),
        )


def peer_of(pid: int, descriptor: int, proc: Path = PROC) -> Peer | None:
    """The other end of a socket of that process; None if the descriptor is none."""
    socket = _SOCKET.fullmatch(target_of(pid, descriptor, proc))
    if socket is None:
        return None
    listed = list(_internet_sockets(pid, proc))
    own = next((one for one in listed if one.inode == socket[1]), None)
    if own is None:
        local = (line.split()[6:7] for line in lines_of(proc / str(pid) / "net" / "unix"))
        known = [socket[1]] in local
        return Peer("another process of its host (a Unix socket)") if known else None
    if own.state == _LISTENS:
        return Peer(f"somebody to connect to its port {int(_port(own.local), 16)}")
    remote = _address(own.remote)
    if own.state == _CONNECTING:
        return Peer(f"{remote}, which does not accept")
    end = next((one for one in listed if one.is_connected_to(own)), None)
    if end is None or end.inode == _UNOWNED:
        return Peer(remote)
    return Peer(remote, _owner(end.inode, pid, proc))


@functools.lru_cache(1024)
def _owner(inode: str, first: int, proc: Path) -> int | None:
    """The process that holds a connection, cached as it hardly ever passes to another one."""
    return holder_of(f"socket:[{inode}]", first, proc)


def _internet_sockets(pid: int, proc: Path) -> Iterator[_Socket]:
    """Those of the process's network namespace."""
    for table in ("tcp", "tcp6"):
        for line in lines_of(proc / str(pid) / "net" / table):
            words = line.split()
            if len(words) > 9 and words[1] != "local_address":
                yield _Socket(words[1], words[2], words[3], words[9])


def _port(words: str) -> str:
    """The port of an address, in hexadecimal digits."""
    return words.rpartition(":")[2]


def _address(words: str) -> str:
    """An address from the kernel's tables: words of four bytes, in native byte order."""
    host, _, port = words.partition(":")
    try:
        raw = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
        address = ipaddress.ip_address(raw)
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        shown = f"[{address}]" if isinstance(address, ipaddress.IPv6Address) else str(address)
        return f"{shown}:{int(port, 16)}"
    except ValueError:
        return ""
