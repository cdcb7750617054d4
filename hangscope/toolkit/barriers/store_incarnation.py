"""The incarnation of the job's store, since a store may have served an earlier attempt of the job.

torchrun keeps one store through all its restarts, so a restarted job finds the keys of its
predecessors, and no variable numbers the attempts consistently on all nodes (each agent counts its
own failures). But all processes of an attempt are dead before the next one starts. An incarnation
is therefore stale for a process if somebody on the same host, by the same clock, joined it before
this process began. The first to find that out replaces it, once, by compare-and-set.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from typing import Protocol

from hangscope.ring.process_identity import start_ticks

OTHER_HOSTS_S = 60.0
"""If nobody on this host has joined an incarnation, it is stale if it was created this long before
the process (a tolerance, as clocks may differ)."""
REPLACEMENTS = 5
"""Attempts to replace a stale incarnation; one is enough unless others do so at the same time."""
_KEY = "hangscope/life"
_CLOCK_READINGS = 5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Store(Protocol):
    """The used part of ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...


def join(
    store: Store,
    rank: int,
    *,
    environ: Mapping[str, str] | None = None,
    started_s: float | None = None,
    host: str | None = None,
    now_s: float | None = None,
) -> str:
    """Join the current incarnation of ``store``, register this rank's host, and return its id.

    Parameters
    ----------
    store:
        The job's store.
    rank:
        Global rank.
    environ:
        Tells whether torchrun serves the store; ``None`` is this process's.
    started_s:
        When this process began, seconds since the epoch.
    host:
        Name of this host.
    now_s:
        Seconds since the epoch.
    """
    env = os.environ if environ is None else environ
    here = socket.gethostname() if host is None else host
    now = time.time() if now_s is None else now_s
    outlives = bool(env.get("TORCHELASTIC_RUN_ID"))  # only torchrun's store outlives processes
    began = (_process_start() if started_s is None else started_s) if outlives else 0.0
    mine = json.dumps({"id": uuid.uuid4().hex[:12], "born": now})
    held = store.compare_set(_KEY, "", mine).decode()
    for _ in range(REPLACEMENTS):
        if not outlives or held == mine or not _is_stale(store, held, here, began):
            break
        held = store.compare_set(_KEY, held, mine).decode()
    incarnation = str(json.loads(held)["id"])
    store.compare_set(f"{_KEY}/{incarnation}/{here}", "", repr(now))
    store.set(host_key(incarnation, rank), f"{here} (pid {os.getpid()})")
    return incarnation


def host_key(incarnation: str, rank: int) -> str:
    """The key under which a rank registers its host."""
    return f"hangscope/who/{incarnation}/{rank}"


def _is_stale(store: Store, held: str, host: str, began: float) -> bool:
    value = json.loads(held)
    joined = f"{_KEY}/{value['id']}/{host}"
    if store.check([joined]):
        return float(store.get(joined)) < began
    return float(value["born"]) < began - OTHER_HOSTS_S


def _process_start() -> float:
    """When this process began, seconds since the epoch, to a hundredth.

    Computed from its age by the kernel's boot clock, which is exact. psutil's ``create_time`` adds
    to the boot time, which ``/proc/stat`` gives in whole seconds: it may be one second too early,
    and a job restarted within that second would take its predecessor's incarnation for its own.
    """
    # A busy machine may suspend this process between the two clocks, which only delays the second.
    booted_s = min(_boot_time() for _ in range(_CLOCK_READINGS))
    return booted_s + start_ticks(os.getpid()) / _TICKS_PER_S


def _boot_time() -> float:
    """When this machine booted, seconds since the epoch, or later if this process was suspended."""
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - up_s
