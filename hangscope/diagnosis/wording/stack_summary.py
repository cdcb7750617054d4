"""Where ranks are, if only their stacks are known."""

from __future__ import annotations

import itertools
import re

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.processes.process_state import End, in_communication
from hangscope.diagnosis.processes.stacks import inside_package, is_library, user_frames, where
from hangscope.diagnosis.wording import playbook
from hangscope.diagnosis.wording.blocked import blocked_in
from hangscope.diagnosis.wording.phrases import is_are, rank_s
from hangscope.trace.model import Frame, Stack

_FEWEST = 3
"""Two stacks at two places decide nothing: either may be the awaited one."""
_SHOWN = 8
_DATA = re.compile(r"[\\/]torch[\\/]utils[\\/]data[\\/]|[\\/]multiprocessing[\\/]")
"""Waits for a helper process of the rank itself."""


def by_stacks(context: Context) -> Finding | None:
    """The few ranks that are elsewhere while most wait in communication; None if there are none."""
    trace = context.trace
    if len(trace.records) or len(trace.members):
        return None
    ended = any(process.end is not End.UNKNOWN for process in context.processes.values())
    stacks = _interrupted(context) if ended else _sampled(context)
    if len(stacks) < _FEWEST or len(stacks) * 2 <= len(trace.ranks) + len(trace.missing_ranks):
        return None
    waiting = tuple(sorted(r for r, stack in stacks.items() if waits(stack)))
    elsewhere = tuple(sorted(set(stacks) - set(waiting)))
    if not elsewhere or len(elsewhere) * 2 >= len(stacks):
        return None
    place = place_of(user_frames(stacks[elsewhere[0]]))
    process = context.processes[elsewhere[0]]
    is_sample = process.stack == stacks[elsewhere[0]]
    advice = playbook.missing(process) if is_sample else playbook.missing(address=place)
    alone = len(elsewhere) == 1
    return Finding(
        Verdict.MISSING_RANK,
        elsewhere,
        waiting,
        Confidence.LIKELY if alone else Confidence.AMBIGUOUS,
        f"{rank_s(elsewhere).capitalize()} {'is' if alone else 'are'} at {place} while "
        f"{rank_s(waiting)} wait at {place_of(user_frames(stacks[waiting[0]]))}",
        "the stacks show who waits in communication, not for whom",
        advice.fix,
        advice.playbook,
        evidence=tuple(f"rank {r}: {place_of(user_frames(stacks[r]))}" for r in elsewhere[:8]),
        unknowns=("what the ranks issued is not on record",),
    )


def places_of_stacks(context: Context) -> tuple[str, ...]:
    """Where each rank is, if stacks are all that is known about the ranks."""
    if len(context.trace.records) or len(context.trace.members):
        return ()
    ranks: dict[str, list[int]] = {}
    for rank, stack in sorted(_sampled(context).items()):
        at = place_of(user_frames(stack)) or where(stack[0])
        words = f"in communication, at {at}" if waits(stack) else f"at {at}"
        ranks.setdefault(words, []).append(rank)
    return tuple(f"{rank_s(those)}: {words}" for words, those in ranks.items())[:_SHOWN]


def places_of_threads(context: Context) -> tuple[str, ...]:
    """Where the ranks' threads are, for whoever has to look; equal ones combined."""
    ranks: dict[str, list[int]] = {}
    for rank, process in sorted(context.processes.items()):
        inner = process.stack[:1]
        frames = user_frames(process.stack)
        package = inside_package(process.stack)
        at = f"at {where(frames[0])}" if frames else ""
        if package is not None:
            at += f", inside {package[0]} ({where(package[1])})"
        elif inner and frames and inner[0] != frames[0]:
            at += f", inside {inner[0].name}"
        if (at or not process.stack) and (waits_for := blocked_in(process)):
            at += f": {waits_for}" if at else waits_for
        if at:
            ranks.setdefault(at, []).append(rank)
    return tuple(f"{rank_s(those)}: {at}" for at, those in ranks.items())[:_SHOWN]


def where_to_look(context: Context) -> str:
    """What to look at first if nobody waits in a collective; empty if stacks do not show it.

    Packages wait for other ranks in their own ways (a server, an actor, a quorum): ranks inside one
    may be waiting for the few that are in their own code.
    """
    inside: dict[str, list[int]] = {}
    own: dict[str, list[int]] = {}
    for rank, process in sorted(context.processes.items()):
        package, frames = inside_package(process.stack), user_frames(process.stack)
        if package is not None:
            inside.setdefault(f"{package[0]} ({where(package[1])})", []).append(rank)
        elif frames:
            own.setdefault(where(frames[0]), []).append(rank)
    waiting = [rank for those in inside.values() for rank in those]
    elsewhere = [rank for those in own.values() for rank in those]
    if not inside or len(elsewhere) > len(waiting):
        return ""
    among = next(iter(inside))
    if not elsewhere:
        return (
            f"every rank is inside {among}, which waits for something other than a collective of "
            "this job; look at what that package talks to (its server, its processes, other jobs)"
        )
    return (
        f"look at {next(iter(own))} on {rank_s(elsewhere)} first: {rank_s(waiting)} "
        f"{is_are(waiting)} inside {among}, which may wait for "
        f"{'it' if len(elsewhere) == 1 else 'them'} in a way that is not recorded"
    )


def _sampled(context: Context) -> dict[int, Stack]:
    """Stacks sampled from running processes."""
    return {r: facts.main_stack for r, facts in context.trace.ranks.items() if facts.main_stack}


def _interrupted(context: Context) -> dict[int, Stack]:
    """Where ranks were when somebody pressed Ctrl-C; empty if a rank failed on its own.

    A wait inside a library cannot be interrupted; it ends when the connection to an interrupted
    rank closes.
    """
    stacks = {}
    for rank, facts in context.trace.ranks.items():
        error = facts.exception
        if error is None or not error.is_main_thread or not error.stack:
            continue
        if not context.processes[rank].secondary:
            return {}
        stacks[rank] = error.stack
    errors = [facts.exception for facts in context.trace.ranks.values()]
    pressed = any(e is not None and e.is_interrupt for e in errors)
    return stacks if pressed else {}


def waits(stack: Stack) -> bool:
    """Whether the innermost frames communicate with other ranks, not with helpers of this one."""
    called = itertools.takewhile(is_library, stack)
    return in_communication(stack) and not any(_DATA.search(f.filename) for f in called)


def place_of(stack: tuple[Frame, ...]) -> str:
    return where(stack[0] if stack else None)
