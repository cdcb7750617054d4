"""Fast network interfaces: InfiniBand by its link type, RoCE by the RDMA device behind it."""

from __future__ import annotations

import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")
_ARPHRD_INFINIBAND = "32"


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface of this host. ``kind`` is ``infiniband``, ``roce``, ``ethernet`` or ``loop``.

    ``speed_mbps`` is 0 if the driver does not tell.
    """

    name: str
    kind: str
    up: bool
    has_ipv4: bool
    speed_mbps: int = 0

    @property
    def usable(self) -> bool:
        """Whether it is up and has an address that the bootstrap can bind to."""
        return self.up and self.has_ipv4


def read_interfaces(
    sysfs: Path = SYSFS, with_ipv4: Collection[str] | None = None
) -> list[Interface]:
    """Interfaces of this host by name.

    Parameters
    ----------
    sysfs:
        Root of sysfs.
    with_ipv4:
        Names of the interfaces that have an IPv4 address; ``None`` asks the system.
    """
    addressed = _with_ipv4() if with_ipv4 is None else with_ipv4
    roce = _roce_names(sysfs)
    found = []
    for entry in sorted(_entries(sysfs / "class/net")):
        name = entry.name
        if _read(entry / "type") == _ARPHRD_INFINIBAND:
            kind = "infiniband"
        elif name in roce:
            kind = "roce"
        else:
            kind = "loop" if _read(entry / "type") == "772" else "ethernet"
        up = _read(entry / "operstate") == "up" or kind == "loop"
        speed = _read(entry / "speed")
        rate = int(speed) if speed.isdigit() else 0
        found.append(Interface(name, kind, up, name in addressed, rate))
    return found


def pick_fast(interfaces: Collection[Interface]) -> Interface | None:
    """The usable InfiniBand or RoCE interface with the highest rate; the first name if tied.

    Every rank of a homogeneous job must choose the same name, so ties must not be arbitrary.
    """
    fast = [i for i in interfaces if i.kind in ("infiniband", "roce") and i.usable]
    return min(fast, key=lambda i: (-i.speed_mbps, i.kind != "infiniband", i.name), default=None)


def unknown_names(value: str, interfaces: Collection[Interface]) -> list[str]:
    """Names in a ``*_SOCKET_IFNAME`` value that match no interface of this host.

    NCCL takes a comma-separated list of prefixes; ``=`` in front asks for exact names and ``^``
    excludes them.
    """
    names = [interface.name for interface in interfaces]
    if value.startswith("^"):
        return []
    exact = value.startswith("=")
    wanted = [part.strip() for part in value.lstrip("=").split(",") if part.strip()]
    if exact:
        return [name for name in wanted if name.split(":")[0] not in names]
    return [name for name in wanted if not any(real.startswith(name) for real in names)]


def _roce_names(sysfs: Path) -> set[str]:
    names: set[str] = set()
    for device in _entries(sysfs / "class/infiniband"):
        layers = {_read(port / "link_layer") for port in _entries(device / "ports")}
        if "Ethernet" in layers:
            names.update(entry.name for entry in _entries(device / "device/net"))
    return names


def _with_ipv4() -> set[str]:
    import psutil

    return {
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.family == socket.AF_INET for address in addresses)
    }


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
