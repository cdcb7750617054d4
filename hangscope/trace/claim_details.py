"""Details of a claim beyond its kind: the keys of `hangscope.trace.model.Claim.details`."""

from __future__ import annotations

from typing import Literal, TypedDict

ClaimKind = Literal[
    "timeout", "desync_report", "fingerprint_mismatch", "monitored_barrier", "missing_ranks",
    "device_error", "network_error", "ddp_unused_parameters", "ddp_marked_twice",
    "ddp_model_mismatch", "rendezvous", "launcher_failure", "oom", "nan", "dump_signal",
    "size_mismatch", "reduction_corrupt", "barrier_timeout", "unreachable", "shared_device",
    "unrecorded", "own_report", "own_all_clear", "own_verdict", "other",
]  # fmt: skip
"""What a claim states. ``own_...``: what HangScope itself has printed or written before."""


class ClaimDetails(TypedDict, total=False):
    """An absent key means unknown. Ranks are global unless stated otherwise."""

    # Of any statement
    place: int | None
    """The reporter's rank inside the claim's group."""
    by_local_rank: bool
    """The end was reported for a local rank, which was translated to the reporter's rank."""
    local_as_rank: bool
    """A local rank was taken for the rank itself: nothing in the log mentions another node."""
    partly_recorded: bool
    """The reporter's watchdog has spoken, but the log does not say what it waits in."""
    cut: bool
    """The log ends in the middle of a watchdog's line."""
    unheard: bool
    """The process that ended is none of the ranks that appear in the log."""
    after_timeout: bool
    """It was said after a watchdog had given up, and may be a consequence of that."""
    blocked: bool
    """A process is stuck in the kernel, or storage does not respond."""
    pid: int
    """The process concerned, if the source does not state its rank."""
    host: str
    """The host of that process, if the source states it."""
    two_processes: bool
    """Two processes have the accused rank."""

    # Of exceptions
    in_group: bool
    """The line that raised it passes a process group to the call."""
    group_name: str
    """The expression for that group, if it is a plain name."""
    dead_thread: bool
    """A thread died of an uncaught exception."""
    after_stop: bool
    """It was raised after the job had been told to stop."""
    unattributed: bool
    """The process that raised it is unknown."""

    # Of watchdogs
    lost_peer: bool
    """NCCL found a connection of the reporter broken, or the rank at its other end gone."""
    gave_up: bool
    watchdog_failed: bool
    watchdog_stuck: bool
    stuck_for_s: int
    silence: bool
    """The timeout of a wait for any sign of progress, not for a collective."""

    # Of monitored barriers
    processed: tuple[int, ...]
    """The ranks that the coordinating rank has seen."""
    places: bool
    """Its numbers are ranks inside a smaller group."""

    # Of launchers
    failed_later: tuple[int, ...]
    """Ranks of which a table tells that they failed; the one that was first is cut off."""

    # Of rendezvous
    joined: int
    """How many ranks had joined."""
    clients: int
    """How many clients the store waited for."""
    world_size: int
    """How many ranks were expected."""
    twice: int
    """The rank that two processes have."""
    sizes: tuple[int, int]
    """Two sizes of one communicator, as stated by its members."""
    waits_for_group_rank: int
    """The group rank whose NCCL id never arrived."""
    waits_for_address_of: int
    """The rank whose address never arrived."""
    store_gone: bool
    """The process that hosts the store has ended."""

    creating: int
    """All of so many ranks began to create a communicator, and none has."""

    snapshot: tuple[str, str, int]
    """A communicator, an operation, and how often all of its members had launched that."""

    # Of debuggers
    stands: bool
    """The text tells in which call of a library a process stands."""

    # Of whole jobs
    stopped: int
    """The signal that told the launcher or scheduler to stop."""
    announced: bool
    """The log announces operations as they are issued."""
    phase: bool
    """The job began this where the waiting began."""
    announced_last: bool
    """The text names the last of them."""

    # Of a verdict that the monitor gave while the job ran
    verdict: str | None
    confidence: str | None
    culprits: tuple[int, ...]
