"""A barrier that names who is missing."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangscope.toolkit.barriers.last_seen import last_seen
from hangscope.toolkit.barriers.meeting import Outcome, StoreGroup, meet
from hangscope.toolkit.barriers.store_group import call_site, ready, store_group_of
from hangscope.toolkit.ranks import compress, name_ranks

if TYPE_CHECKING:
    import torch.distributed as dist

RINGS_READ = 4
"""Missing ranks whose rings are read for the message."""
HOSTS_NAMED = 8


@dataclass(frozen=True, slots=True)
class MissingRank:
    """What is known about a rank that did not arrive."""

    rank: int
    host: str = ""
    last: str = ""
    """What it was last doing, if its ring can be read on this machine."""


class BarrierTimeout(TimeoutError):  # noqa: N818 - the name is the contract's
    """Some members did not arrive in time. Raised on every member that did.

    Attributes:
        missing: global ranks that did not arrive; empty if the store was lost.
        arrived: global ranks that did.
        details: host and last activity of the missing, by rank.
        reason: what the barrier was for.
        waited_s: how long this rank waited.
    """

    def __init__(
        self,
        message: str,
        missing: Sequence[int] = (),
        arrived: Sequence[int] = (),
        details: Mapping[int, MissingRank] | None = None,
        reason: str = "",
        waited_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.missing = list(missing)
        self.arrived = list(arrived)
        self.details = dict(details or {})
        self.reason = reason
        self.waited_s = waited_s

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        fields = (self.missing, self.arrived, self.details, self.reason, self.waited_s)
        return type(self), (str(self), *fields)


def barrier(
    timeout: float = 60.0, reason: str = "", group: dist.ProcessGroup | None = None
) -> None:
    """Wait until every member of ``group`` is here, whatever its backend.

    Either all members return, or every member that arrived raises. It uses the job's key-value
    store and issues no collective, so it works while communicators are broken or do not exist yet,
    and it does not wait for work queued on a device. The first member whose ``timeout`` expires
    ends the barrier for all. A member that arrives later, from the same place in the program,
    raises at once.

    Without an initialised process group, or on a rank outside ``group``, it warns and returns.

    Parameters
    ----------
    timeout:
        Seconds, above zero.
    reason:
        What the barrier is for; part of the message.
    group:
        The process group; ``None`` is the default group.

    Raises
    ------
    BarrierTimeout
        A member did not arrive, or the store was lost.
    ValueError
        ``timeout`` is not a positive number.
    """
    check_timeout(timeout)
    if not ready("barrier", group):
        return
    with _phase(reason):
        hold(store_group_of(group, "barrier"), timeout, reason, call_site())


def hold(store_group: StoreGroup, timeout: float, reason: str, site: str = "") -> None:
    """`barrier` for any store group, even before a process group exists."""
    if len(store_group.ranks) == 1:
        return
    outcome = meet(store_group, timeout_s=timeout, site=f"{site}|{reason}")
    if not outcome.met:
        raise timeout_error(store_group, outcome, timeout, reason)


def check_timeout(timeout: float, name: str = "timeout") -> None:
    """Raise ValueError unless ``timeout`` is a positive number of seconds."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise ValueError(f"{name} is in seconds, a positive number, not {timeout!r}")
    if not timeout > 0 or math.isnan(timeout):
        raise ValueError(f"{name}={timeout}: a positive number of seconds is needed")


def check_count(count: int, name: str) -> None:
    """Raise ValueError unless ``count`` is a whole number of at least one."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name}={count!r}: at least one is needed")


def timeout_error(
    store_group: StoreGroup, outcome: Outcome, timeout: float, reason: str
) -> BarrierTimeout:
    """The exception for a failed meeting, with everything known about the missing members."""
    details = {
        rank: MissingRank(
            rank,
            outcome.hosts.get(rank, ""),
            (last_seen(rank) or "") if index < RINGS_READ else "",
        )
        for index, rank in enumerate(outcome.missing)
    }
    return BarrierTimeout(
        _message(store_group, outcome, details, timeout, reason),
        outcome.missing,
        outcome.arrived,
        details,
        reason,
        outcome.waited_s,
    )


def _message(
    store_group: StoreGroup,
    outcome: Outcome,
    details: Mapping[int, MissingRank],
    timeout: float,
    reason: str,
) -> str:
    what = (
        f"barrier{f' for {reason!r}' if reason else ''} in group {store_group.label or 'default'}"
    )
    if outcome.store_error:
        return (
            f"{what}: the job's key-value store was lost after {outcome.waited_s:.1f} s "
            f"({outcome.store_error}). Likely cause: the process that serves it (rank 0, or "
            "torchrun on the first node) has ended; look at its log first."
        )
    if outcome.late:
        return (
            f"{what}: rank {store_group.me} came after the others had given up on "
            f"{name_ranks(outcome.missing)}. Look at what delayed this rank, or give the barrier "
            f"more than {timeout:g} s."
        )
    known = [_known(details[rank]) for rank in outcome.missing[:HOSTS_NAMED]]
    return (
        f"{what}: {name_ranks(outcome.missing)} of {len(store_group.ranks)} did not come within "
        f"{timeout:g} s. Missing: {'; '.join(known)}"
        f"{'; ...' if len(outcome.missing) > HOSTS_NAMED else ''}. "
        f"Arrived: {compress(outcome.arrived)}. "
        f"Likely: {likely_cause(store_group, outcome, details)}."
    )


def _known(missing: MissingRank) -> str:
    where = f" on {missing.host}" if missing.host else ""
    return f"rank {missing.rank}{where}{f' ({missing.last})' if missing.last else ''}"


def likely_cause(
    store_group: StoreGroup, outcome: Outcome, details: Mapping[int, MissingRank]
) -> str:
    """The most probable explanation for who is missing, in one sentence."""
    ended = [rank for rank, known in details.items() if known.last.startswith(("ended", "raised"))]
    if ended:
        return f"{name_ranks(ended)} ended before the barrier: fix the first error in that log"
    hosts = {rank: host.split(" ")[0] for rank, host in outcome.hosts.items()}
    shared = set(hosts.values())
    if len(outcome.missing) > 1 and len(hosts) == len(outcome.missing) and len(shared) == 1:
        return f"all of them run on {shared.pop()}: that node or its network is down"
    if len(outcome.missing) > 1 and len(outcome.missing) * 2 >= len(store_group.ranks):
        return (
            "the barrier stands in a branch that only some ranks take, or the ranks disagree on "
            "MASTER_ADDR, MASTER_PORT or WORLD_SIZE"
        )
    return (
        "it crashed, is still busy with something else, or took a branch that has no barrier; "
        "look at its log and its stack"
    )


def _phase(reason: str) -> contextlib.AbstractContextManager[object]:
    """Mark the barrier as a phase if this process records; never imports the recorder for that."""
    api = sys.modules.get("hangscope.recording.api")
    phase = getattr(api, "phase", None)
    if phase is None:
        return contextlib.nullcontext()
    try:
        marked = phase(f"barrier: {reason}" if reason else "barrier")
    except Exception:
        return contextlib.nullcontext()
    return marked if hasattr(marked, "__enter__") else contextlib.nullcontext()
