"""Where ranks, or processes of unknown rank, are, if only their stacks are known.

Only a known rank can be named. But it can be said which process to look at first, and how to find
out which rank it is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.processes.process_state import End, ProcessState, in_communication
from hangscope.diagnosis.processes.stacks import inside_package, is_library, user_frames, where
from hangscope.diagnosis.wording.blocked import blocked_in
from hangscope.diagnosis.wording.phrases import capital, rank_s, verb
from hangscope.diagnosis.wording.rank_advice import missing
from hangscope.trace.model import Frame, Stack, UnrankedProcess

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
    advice = missing(process) if is_sample else missing(address=place)
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
    """Where each rank is, if stacks are all that is known about the ranks; and each process of
    unknown rank."""
    stacks = {} if len(context.trace.records) or len(context.trace.members) else _sampled(context)
    ranks = _by_place((rank, _stands(stack)) for rank, stack in sorted(stacks.items()))
    unranked = context.trace.unranked_processes[:_SHOWN]
    return (*ranks, *(f"{one.name}: {_stands(one.stack)}" for one in unranked))


def _stands(stack: Stack) -> str:
    """``in communication, at train.py:30 in step``."""
    at = place_of(user_frames(stack)) or place_of(stack)
    return f"in communication, at {at}" if waits(stack) else f"at {at}"


def _by_place(those: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    """``ranks 0–3: at train.py:30 in step``, the most that a report shows."""
    ranks: dict[str, list[int]] = {}
    for rank, at in those:
        if at:
            ranks.setdefault(at, []).append(rank)
    return tuple(f"{rank_s(some)}: {at}" for at, some in ranks.items())[:_SHOWN]


def places_of_threads(context: Context) -> tuple[str, ...]:
    """Where the ranks' threads are, for whoever has to look; equal ones combined."""
    return _by_place((rank, _thread(p)) for rank, p in sorted(context.processes.items()))


def _thread(process: ProcessState) -> str:
    """Where it is, inside which call, and what it waits for there, as far as known."""
    frames, package = user_frames(process.stack), inside_package(process.stack)
    at = f"at {where(frames[0])}" if frames else ""
    if package is not None:
        at += f", inside {package[0]} ({where(package[1])})"
    elif frames and process.stack[0] != frames[0]:
        at += f", inside {process.stack[0].name}"
    if process.stack and not at:
        return ""
    return ": ".join(words for words in (at, blocked_in(process)) if words)


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
        f"{verb(waiting, 'is')} inside {among}, which may wait for "
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


_NAMED = 2
"""Up to this many processes are named individually in a sentence."""


def where_unranked_are(context: Context) -> str:
    """One sentence on where they are: the few apart from the others, if there are few."""
    unranked = context.trace.unranked_processes
    if not unranked:
        return ""
    apart = _apart(context)
    rest = [one for one in unranked if one not in apart]
    told = apart or unranked
    where_others = f" while {_stand(rest)}" if apart else ""
    they, are = ("it", "is") if len(told) == 1 else ("they", "are")
    return f"{capital(_stand(told))}{where_others}; nothing tells which rank {they} {are}"


def how_to_identify(context: Context) -> str:
    """How to find out which rank such a process is."""
    apart = _apart(context)
    first = (apart or context.trace.unranked_processes)[0]
    pid = first.pid if first.pid is not None else "PID"
    look = f"look at {_place(first)} in {first.name}; " if apart else ""
    return (
        f"{look}`tr '\\0' '\\n' </proc/{pid}/environ | grep RANK` on its host tells which rank a "
        "process is; name the file of its stack after it (stack_rank_3.txt), or give the job's log "
        "as well"
    )


def _apart(context: Context) -> tuple[UnrankedProcess, ...]:
    """The few that are elsewhere while most wait in communication; empty if undecided."""
    unranked = context.trace.unranked_processes
    elsewhere = tuple(one for one in unranked if not waits(one.stack))
    few = len(elsewhere) * 2 < len(unranked) and len(unranked) >= _FEWEST
    return elsewhere if few else ()


def elsewhere(context: Context) -> tuple[str, ...]:
    """Where those are that are not in communication: one may be a missing rank."""
    unranked = context.trace.unranked_processes
    return tuple(f"{one.name} is at {_place(one)}" for one in unranked if not waits(one.stack))


def _stand(those: Sequence[UnrankedProcess]) -> str:
    """``process 41 waits in communication at train.py:30 in step``."""
    names = " and ".join(one.name for one in those)
    names = names if len(those) <= _NAMED else f"{len(those)} processes"
    places = {_place(one) for one in those}
    at = next(iter(places)) if len(places) == 1 else f"{len(places)} places"
    wait = all(waits(one.stack) for one in those)
    does = ("waits" if wait else "is") if len(those) == 1 else ("wait" if wait else "are")
    return f"{names} {does} {'in communication ' * wait}at {at}"


def _place(one: UnrankedProcess) -> str:
    return place_of(user_frames(one.stack))
