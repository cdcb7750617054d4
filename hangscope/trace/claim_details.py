"""What a statement tells beyond its kind: the keys of `hangscope.trace.model.Claim.details`."""

from __future__ import annotations

from typing import TypedDict


class ClaimDetails(TypedDict, total=False):
    """Only what is said; a key that is absent is not known. Ranks are global."""

    # Of any statement
    place: int | None
    """The reporter's rank inside the claim's group."""
    by_local_rank: bool
    """The end of the reporter was told of a local rank, and that was taken for the rank."""
    local_as_rank: bool
    """The local rank itself was: nothing in the log speaks of another node."""
    half_told: bool
    """The reporter's watchdog has spoken, and what it waits in is not in the log."""
    cut: bool
    """The log ends in the middle of a watchdog's line."""
    unheard: bool
    """A process ended that is none of the ranks that were heard of."""
    blocked: bool
    """A process does not come back from the kernel, or storage does not answer."""
    pid: int
    """The process that it is about, where the source does not tell the rank."""
    host: str
    """The host of that process, where the source does."""
    two_processes: bool
    """Two processes call themselves the accused rank."""

    # Of exceptions
    in_group: bool
    """The line that raised it passes a process group to what it calls."""
    group_name: str
    """The expression for that group, where it is a name."""
    dead_thread: bool
    """A thread died of an exception that nobody caught."""
    after_stop: bool
    """It was raised once the job had been told to stop."""
    nobodys: bool
    """Nothing tells which process raised it."""

    # Of watchdogs
    gave_up: bool
    watchdog_failed: bool
    watchdog_stuck: bool
    stuck_for_s: int
    silence: bool
    """A timeout of whoever waited for any sign of progress, not for a collective."""

    # Of monitored barriers
    processed: tuple[int, ...]
    """The ranks that the coordinator has seen."""
    places: bool
    """Its numbers are ranks inside a smaller group."""

    # Of ranks that meet
    joined: int
    """How many had come."""
    clients: int
    """For how many the store waited."""
    world_size: int
    """Of how many the meeting was to be."""
    twice: int
    """The rank that two processes say they are."""
    sizes: tuple[int, int]
    """Two sizes of one communicator, as its members count them."""
    waits_for_group_rank: int
    """The rank inside the group whose NCCL id never came."""
    waits_for_address_of: int
    """The rank whose address never came."""
    store_gone: bool
    """The process that serves the store has ended."""

    # Of whole jobs
    stopped: int
    """The signal with which the launcher or the scheduler was told to stop."""
    announced: bool
    """Operations are announced in the log as they are issued."""
    announced_last: bool
    """The text tells the last of them."""

    # Of what the monitor concluded while the job ran
    verdict: str | None
    confidence: str | None
    culprits: tuple[int, ...]
