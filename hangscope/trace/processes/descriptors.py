"""What a process's open file descriptors refer to, and which processes are at the other end."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path

from hangscope.trace.processes.procfs import PROC, lines_of

_MOST_DESCRIPTORS = 20_000
"""On a machine with more, the search for a pipe's other end is abandoned."""
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_LISTENS = "0A"
_CONNECTING = "02"


def target_of(pid: int, descriptor: int, proc: Path = PROC) -> str:
    """The target of a descriptor, as named in ``/proc``; empty if it has none."""
    try:
        return os.readlink(f"{proc}/{pid}/fd/{descriptor}")
    except OSError:
        return ""


def descriptors_of(pid: int | str, proc: Path = PROC) -> list[int]:
    """The open descriptors of a process; empty if they may not be read."""
    try:
        return [int(name) for name in os.listdir(f"{proc}/{pid}/fd") if name.isdecimal()]
    except OSError:
        return []


def processes_at_other_end(
    pid: int, pipe: str, writes: bool, proc: Path = PROC
) -> list[int] | None:
    """Processes, perhaps ``pid`` itself, that hold the end of a pipe that ``pid`` does not wait at.

    None if that cannot be determined: other processes' descriptors may be hidden, or too many.
    """
    found, looked = [], 0
    for name in sorted(os.listdir(proc)):
        if not name.isdecimal():
            continue
        try:
            descriptors = os.listdir(proc / name / "fd")
        except FileNotFoundError:
            continue  # the process has just ended
        except OSError:
            return None
        looked += len(descriptors)
        if looked > _MOST_DESCRIPTORS:
            return None
        for descriptor in descriptors:
            if descriptor.isdecimal() and target_of(int(name), int(descriptor), proc) == pipe:
                reads = _mode(name, descriptor, proc) != os.O_WRONLY
                if reads == writes and int(name) not in found:
                    found.append(int(name))
    return found


def _mode(pid: str, descriptor: str, proc: Path) -> int:
    """``os.O_RDONLY``, ``os.O_WRONLY`` or ``os.O_RDWR``; -1 if unknown."""
    for line in lines_of(proc / pid / "fdinfo" / descriptor):
        key, _, value = line.partition(":")
        if key == "flags":
            try:
                return int(value, 8) & os.O_ACCMODE
            except ValueError:
                return -1
    return -1


def peer_of(pid: int, descriptor: int, proc: Path = PROC) -> str:
    """``10.0.0.7:443`` for an internet socket; a description for any other socket."""
    socket = _SOCKET.fullmatch(target_of(pid, descriptor, proc))
    if socket is None:
        return ""
    for table in ("tcp", "tcp6"):
        for line in lines_of(proc / str(pid) / "net" / table):
            words = line.split()
            if len(words) > 9 and words[9] == socket[1]:
                if words[3] == _LISTENS:
                    port = _address(words[1]).rpartition(":")[2]
                    return f"somebody to connect to its port {port}"
                peer = _address(words[2])
                return f"{peer}, which does not accept" if words[3] == _CONNECTING else peer
    local = (line.split()[6:7] for line in lines_of(proc / str(pid) / "net" / "unix"))
    return "another process of its host (a Unix socket)" if [socket[1]] in local else ""


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
