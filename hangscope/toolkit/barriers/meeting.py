"""The meeting protocol: members of a group meet in the job's key-value store, not in a collective.

A barrier, a comparison of arguments and a comparison of checksums are all the same: every member
arrives, says something short, and all of them learn the same outcome. The protocol for generation
``k`` of a store group of ``n`` members:

* a member appends one line about itself to the *roll* and adds 1 to the *count*: two requests;
* the member that makes the count ``n`` writes the *verdict* "met"; the others poll for the verdict,
  with pauses that grow to a cap set by ``n``, so the server sees a bounded rate of requests;
* a member whose time is up asks to be *judge*; one is elected, reads the roll once, and writes the
  verdict "failed" with the missing members; if a judge dies, the next one is elected.

The verdict is written by compare-and-set, so it is decided once and holds for everybody: either all
members return, or all that arrived fail. Every process counts generations itself and continues
counting after a failure. A member that arrives at a generation which has already failed without it
is *late* if it comes from the same place in the program; else it goes on to the next generation.

Waiting polls with ``check`` rather than the store's own ``wait``: a waiting TCPStore client holds
its lock, which would block every other thread that needs the store, and it writes to the job's log
each time it is interrupted.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.util import Finalize
from typing import Any, Protocol

from hangscope.toolkit.barriers.store_incarnation import host_key
from hangscope.toolkit.ranks import compress, expand

FIRST_PAUSE_S = 0.0003
"""First pause between two polls for the verdict; each pause is 1.5 times the previous one."""
SERVER_LOOKS_PER_S = 4000
"""Polls per second that the server gets from all members together; sets the longest pause."""
SHORTEST_CAP_S, LONGEST_CAP_S = 0.02, 1.0
JUDGE_GRACE_S = 3.0
"""How long an elected judge may take before another is elected."""
JUDGES = 3
"""Elections before every remaining member judges for itself."""
NAMED_HOSTS = 32
"""Limit on missing members whose hosts the verdict lists."""
GOODBYE_S = 2.0
"""How long the process that serves the store waits at exit for members that are still reading."""

Ranks = tuple[int, ...]

_PARTS = ("roll", "count", "verdict")
_FAILED_PARTS = ("gone", *(f"judge{election}" for election in range(JUDGES)))


class Store(Protocol):
    """The used part of ``torch.distributed.Store``; tests count requests through it."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...
    def append(self, key: str, value: str) -> None: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...
    def delete_key(self, key: str) -> bool: ...
    def has_extended_api(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """The members of a meeting and their store.

    ``ranks`` are global, in group-rank order; ``name`` is unique in the store.
    """

    store: Store
    name: str
    ranks: Ranks
    me: int
    label: str = ""
    incarnation: str = ""
    """The store's incarnation (see `store_incarnation`); part of every key."""

    @property
    def key(self) -> str:
        """Prefix of all keys of this group."""
        return f"{self.name}@{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Member:
    """What a member says about itself on arrival."""

    rank: int
    host: str = ""
    pid: int = 0
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a meeting ended; ``met`` is the same on every member that took part."""

    met: bool
    arrived: Ranks = ()
    missing: Ranks = ()
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Hosts of the missing members, if known."""
    said: Mapping[str, Ranks] = field(default_factory=dict)
    """If the meeting compares: what was said, and the ranks that said it."""
    late: bool = False
    """This member arrived after the others had given up."""
    store_error: str = ""
    waited_s: float = 0.0
    generation: int = -1
    """The number of this meeting; the same on all members that met."""


class _Progress:
    """This process's generation counters of every store group."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.next: dict[tuple[str, str], int] = {}
        self.clean: dict[tuple[str, str], int] = {}
        self.goodbye: tuple[Store, str, int] | None = None
        """(store, key, count): when the key has this count, all have read the last verdict."""

    def take(self, store_group: StoreGroup) -> int:
        with self.lock:
            key = (store_group.incarnation, store_group.name)
            generation = self.next.get(key, 0)
            self.next[key] = generation + 1
            return generation

    def cleaned(self, store_group: StoreGroup, upto: int) -> int:
        """Note that generations before ``upto`` are deleted; returns the previous such value."""
        with self.lock:
            key = (store_group.incarnation, store_group.name)
            since = self.clean.get(key, 0)
            self.clean[key] = max(since, upto)
            return since


_PROGRESS = _Progress()


@dataclass(frozen=True, slots=True)
class _Visit:
    """One member's arguments for a meeting, and its clock (seconds, monotonic)."""

    say: str
    compare: bool
    site: str
    began_s: float
    deadline_s: float
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def waited_s(self) -> float:
        """How long the member has been waiting."""
        return self.clock() - self.began_s


def meet(
    store_group: StoreGroup,
    *,
    timeout_s: float,
    say: str = "",
    compare: bool = False,
    site: str = "",
    progress: _Progress = _PROGRESS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Meet the other members of ``store_group``; never raises because of them.

    Parameters
    ----------
    store_group:
        The members; all must call with the same ranks and name.
    timeout_s:
        Seconds until this member gives up, and all others with it.
    say:
        A short text for the others.
    compare:
        Whether the verdict lists what was said and by whom; must be the same on all members.
    site:
        The call's place in the program; tells a latecomer from a new meeting.
    progress:
        Generation counters (one per simulated process in tests).
    clock:
        Seconds, monotonic.
    sleep:
        Waits that many seconds.
    """
    began_s = clock()
    visit = _Visit(say, compare, site, began_s, began_s + timeout_s, clock, sleep)
    try:
        while True:
            outcome = _attend(store_group, visit, progress.take(store_group), progress)
            if outcome is not None:
                return outcome
    except RuntimeError as error:  # torch's DistError and its children
        return Outcome(False, store_error=_one_line(error), waited_s=visit.waited_s())


def _attend(
    store_group: StoreGroup, visit: _Visit, generation: int, progress: _Progress
) -> Outcome | None:
    """Take part in one generation; ``None`` if it failed earlier at another site: try the next."""
    store, key = store_group.store, f"{store_group.key}/{generation}"
    if store.has_extended_api():
        store.append(f"{key}/roll", _line(store_group.me, visit.say))
    else:  # a FileStore cannot append atomically
        store.set(f"{key}/roll/{store_group.me}", _line(store_group.me, visit.say))
    if store.add(f"{key}/count", 1) == len(store_group.ranks):
        verdict = _decide(store_group, key, _met(store_group, key, visit.compare))
    else:
        verdict = _await(store_group, visit, key, visit.deadline_s) or _judge(
            store_group, visit, key
        )
    waited_s = visit.waited_s()
    if verdict.get("met"):
        _tidy(store_group, generation, progress)
        said = {text: tuple(expand(ranks)) for text, ranks in verdict.get("said", {}).items()}
        return Outcome(True, store_group.ranks, said=said, waited_s=waited_s, generation=generation)
    missing = tuple(expand(verdict["missing"]))
    late = store_group.me in missing
    if late and verdict.get("site") != visit.site:
        return None
    hosts = {int(rank): host for rank, host in verdict.get("hosts", {}).items()}
    arrived = tuple(expand(verdict["arrived"]))
    if not late:
        store.add(f"{key}/gone", 1)
        progress.goodbye = (store, f"{key}/gone", len(arrived))
        _wait_for_readers_at_exit(os.getpid())
    return Outcome(False, arrived, missing, hosts, late=late, waited_s=waited_s)


def _await(
    store_group: StoreGroup, visit: _Visit, key: str, deadline_s: float
) -> dict[str, Any] | None:
    """Poll for the verdict until the deadline."""
    cap = min(LONGEST_CAP_S, max(SHORTEST_CAP_S, len(store_group.ranks) / SERVER_LOOKS_PER_S))
    pause = FIRST_PAUSE_S
    while not store_group.store.check([f"{key}/verdict"]):
        left = deadline_s - visit.clock()
        if left <= 0:
            return None
        visit.sleep(min(pause, left))
        pause = min(pause * 1.5, cap)
    return _loads(store_group.store.get(f"{key}/verdict"))


def _judge(store_group: StoreGroup, visit: _Visit, key: str) -> dict[str, Any]:
    """Time is up: one member finds out who is missing, the others wait for its verdict."""
    for election in range(JUDGES):
        if store_group.store.add(f"{key}/judge{election}", 1) == 1:
            break
        verdict = _await(store_group, visit, key, visit.clock() + JUDGE_GRACE_S)
        if verdict is not None:
            return verdict
    members = _roll(store_group, key)
    here = {member.rank for member, _ in members}
    missing = [rank for rank in store_group.ranks if rank not in here]
    if not missing:  # the member that completed the count died before writing the verdict
        return _decide(store_group, key, _met(store_group, key, compare=True))
    return _decide(
        store_group,
        key,
        {
            "met": False,
            "missing": compress(missing),
            "arrived": compress(here),
            "hosts": _hosts(store_group, missing[:NAMED_HOSTS], [m for m, _ in members]),
            "site": visit.site,
        },
    )


def _decide(store_group: StoreGroup, key: str, verdict: dict[str, Any]) -> dict[str, Any]:
    """Write the verdict unless there already is one; returns the valid one."""
    return _loads(store_group.store.compare_set(f"{key}/verdict", "", json.dumps(verdict)))


def _met(store_group: StoreGroup, key: str, compare: bool) -> dict[str, Any]:
    if not compare:
        return {"met": True}
    said: dict[str, list[int]] = {}
    for member, text in _roll(store_group, key):
        said.setdefault(text, []).append(member.rank)
    return {"met": True, "said": {text: compress(ranks) for text, ranks in said.items()}}


def _tidy(store_group: StoreGroup, generation: int, progress: _Progress) -> None:
    """Sign off; the last member deletes keys that no member can need any more.

    All members have been in this generation, so all have left the earlier ones.
    """
    key = f"{store_group.key}/{generation}/count"
    twice = 2 * len(store_group.ranks)  # each member adds 1 on arrival and 1 on leaving
    progress.goodbye = (store_group.store, key, twice)
    _wait_for_readers_at_exit(os.getpid())
    gone = store_group.store.add(key, 1)
    since = progress.cleaned(store_group, generation)
    if gone != twice:
        return
    # All have signed off, so whoever serves the store may be gone: nobody needs these keys.
    with contextlib.suppress(RuntimeError):
        for old in range(since, generation):
            for part in _PARTS if old == generation - 1 else _PARTS + _FAILED_PARTS:
                store_group.store.delete_key(f"{store_group.key}/{old}/{part}")


def _line(rank: int, say: str) -> str:
    node = os.environ.get("GROUP_RANK") or os.environ.get("SLURM_NODEID") or ""
    return (
        json.dumps([rank, socket.gethostname(), os.getpid(), node, say], separators=(",", ":"))
        + "\n"
    )


def _roll(store_group: StoreGroup, key: str) -> list[tuple[Member, str]]:
    store = store_group.store
    if store.has_extended_api():
        text = store.get(f"{key}/roll")
    else:
        lines = (f"{key}/roll/{rank}" for rank in store_group.ranks)
        text = b"".join(store.get(line) for line in lines if store.check([line]))
    found: dict[int, tuple[Member, str]] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        try:
            rank, host, pid, node, say = json.loads(line)
        except ValueError:
            continue
        found[rank] = (Member(rank, host, pid, int(node) if node.isdigit() else None), say)
    return [found[rank] for rank in store_group.ranks if rank in found]


def _hosts(
    store_group: StoreGroup, missing: Iterable[int], present: Sequence[Member]
) -> dict[str, str]:
    """Hosts of the missing: as they registered earlier, else inferred from the node layout."""
    hosts: dict[str, str] = {}
    for rank in missing:
        who = host_key(store_group.incarnation, rank)
        if store_group.store.check([who]):
            hosts[str(rank)] = store_group.store.get(who).decode()
        else:
            guess = host_by_layout(rank, present)
            if guess:
                hosts[str(rank)] = f"{guess} (by the layout of the nodes)"
    return hosts


def host_by_layout(rank: int, present: Iterable[Member]) -> str:
    """The host of the present members with ranks on both sides of ``rank``, or of all members."""
    spans: dict[str, list[int]] = {}
    for member in present:
        spans.setdefault(member.host, []).append(member.rank)
    around = [host for host, ranks in spans.items() if min(ranks) < rank < max(ranks)]
    return around[0] if len(around) == 1 else ""


def _loads(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise RuntimeError(f"unexpected value in the store: {data[:80]!r}")
    return value


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _wait_for_readers() -> None:
    """Keep the process that serves the store alive until all have read the last verdict."""
    last = _PROGRESS.goodbye
    if last is None or os.environ.get("RANK", "0") != "0":
        return
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun serves it
        return
    store, key, expected = last
    deadline = time.monotonic() + GOODBYE_S
    try:
        while store.add(key, 0) < expected and time.monotonic() < deadline:
            time.sleep(0.005)
    except Exception:  # the store is already gone, so nobody can be reading
        return


@functools.cache
def _wait_for_readers_at_exit(process_id: int) -> None:
    """Once per process; forked children of multiprocessing end without functions of ``atexit``."""
    Finalize(None, _wait_for_readers, exitpriority=0)
