"""Two linked network namespaces that stand for two hosts (needs root)."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

LINKS = ("hangs0", "hangs1")
ADDRESSES = ("10.77.0.1", "10.77.0.2")


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """The names of two connected network namespaces."""
    hosts = (f"hs{os.getpid()}a", f"hs{os.getpid()}b")
    steps = [["ip", "netns", "add", host] for host in hosts]
    steps.append(
        ["ip", "link", "add", LINKS[0], "netns", hosts[0], "type", "veth",
         "peer", "name", LINKS[1], "netns", hosts[1]]
    )  # fmt: skip
    for host, link, address in zip(hosts, LINKS, ADDRESSES, strict=True):
        steps.append(["ip", "-n", host, "addr", "add", f"{address}/24", "dev", link])
        steps.append(["ip", "-n", host, "link", "set", link, "up"])
        steps.append(["ip", "-n", host, "link", "set", "lo", "up"])
    try:
        for step in steps:
            subprocess.run(step, check=True)
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host], check=False)
