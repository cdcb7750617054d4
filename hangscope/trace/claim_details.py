"""Details of a claim beyond its kind."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

ClaimKind = Literal[
    "timeout", "desync_report", "fingerprint_mismatch", "monitored_barrier", "missing_ranks",
    "device_error", "network_error", "ddp_unused_parameters", "ddp_marked_twice",
    "ddp_model_mismatch", "rendezvous", "launcher_failure", "oom", "nan", "dump_signal",
    "size_mismatch", "reduction_corrupt", "barrier_timeout", "unreachable", "shared_device",
    "unrecorded", "own_report", "own_all_clear", "own_verdict", "home",
    "device_failed", "other",
]  # fmt: skip
"""What a claim states. ``own_...``: what HangScope itself has printed or written before.
``device_failed``: a node's hardware says that a rank's device does no more work."""


@dataclass(frozen=True, slots=True)
class ClaimDetails:
    """What a claim tells beyond its kind; the defaults mean unknown. Ranks are global unless stated
    otherwise."""

    # Of any statement
    place: int | None = None
    """The reporter's rank inside the claim's group."""
    by_local_rank: bool = False
    """The end was reported for a local rank, which was translated to the reporter's rank."""
    local_as_rank: bool = False
    """A local rank was taken for the rank itself: nothing in the log mentions another node."""
    partly_recorded: bool = False
    """The reporter's watchdog has spoken, but the log does not say what it waits in."""
    cut: bool = False
    """The log ends in the middle of a watchdog's line."""
    unheard: bool = False
    """The process that ended is none of the ranks that appear in the log."""
    after_timeout: bool = False
    """It was said after a watchdog had given up, and may be a consequence of that."""
    blocked: bool = False
    """A process is stuck in the kernel, or storage does not respond."""
    pid: int | None = None
    """The process concerned, if the source does not state its rank."""
    host: str = ""
    """The host of that process, if the source states it."""
    ranks: tuple[int, ...] = ()
    """The ranks that run on the host that the claim's text names."""
    two_processes: bool = False
    """Two processes have the accused rank."""

    # Of exceptions
    in_group: bool = False
    """The line that raised it passes a process group to the call."""
    group_name: str = ""
    """The expression for that group, if it is a plain name."""
    dead_thread: bool = False
    """A thread died of an uncaught exception."""
    after_stop: bool = False
    """It was raised after the job had been told to stop."""
    unattributed: bool = False
    """The process that raised it is unknown."""

    # Of watchdogs
    lost_peer: bool = False
    """NCCL found a connection of the reporter broken, or the rank at its other end gone."""
    gave_up: bool = False
    watchdog_failed: bool = False
    watchdog_stuck: bool = False
    stuck_for_s: int = 0
    silence: bool = False
    """The timeout of a wait for any sign of progress, not for a collective."""

    # Of monitored barriers
    processed: tuple[int, ...] | None = None
    """The ranks that the coordinating rank has seen."""
    places: bool = False
    """Its numbers are ranks inside a smaller group."""

    # Of launchers
    failed_later: tuple[int, ...] = ()
    """Ranks of which a table tells that they failed; the one that was first is cut off."""

    # Of rendezvous
    joined: int = 0
    """How many ranks had joined."""
    clients: int = 0
    """How many clients the store waited for."""
    world_size: int = 0
    """How many ranks were expected."""
    twice: int | None = None
    """The rank that two processes have."""
    sizes: tuple[int, int] | None = None
    """Two sizes of one communicator, as stated by its members."""
    waits_for_group_rank: int | None = None
    """The group rank whose NCCL id never arrived."""
    waits_for_address_of: int | None = None
    """The rank whose address never arrived."""
    store_gone: bool = False
    """The process that hosts the store has ended."""

    creating: int = 0
    """All of so many ranks began to create a communicator, and none has."""

    snapshot: tuple[str, str, int] | None = None
    """A communicator, an operation, and how often all of its members had launched that."""

    # Of debuggers
    stands: bool = False
    """The text tells in which call of a library a process stands."""

    # Of whole jobs
    stopped: int | None = None
    """The signal that told the launcher or scheduler to stop."""
    announced: bool = False
    """The log announces operations as they are issued."""
    phase: bool = False
    """The job began this where the waiting began."""
    announced_last: bool = False
    """The text names the last of them."""

    # Of a verdict that the monitor gave while the job ran
    verdict: str | None = None
    confidence: str | None = None
    culprits: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    """Hosts of which one, or the link between them, is at fault."""

    def completed_by(self, other: ClaimDetails) -> ClaimDetails:
        """These, with what only the other ones tell."""
        if other is NO_DETAILS:
            return self
        known = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        told = {f.name: getattr(other, f.name) for f in fields(self) if f.name not in known}
        return replace(self, **told)


NO_DETAILS = ClaimDetails()
