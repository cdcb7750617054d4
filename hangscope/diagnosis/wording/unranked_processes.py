"""Where processes of unknown rank are.

Only a known rank can be named. But it can be said which process to look at first, and how to find
out which rank it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.processes.stacks import user_frames
from hangscope.diagnosis.wording.phrases import capital
from hangscope.diagnosis.wording.stack_summary import place_of, waits
from hangscope.trace.model import UnrankedProcess

_FEWEST = 3
"""Of two processes at two places, either may be the awaited one."""
_SHOWN = 8
_NAMED = 2
"""Up to this many processes are named individually in a sentence."""


def where_unranked_are(context: Context) -> str:
    """One sentence on where they are: the few apart from the others, if there are few."""
    unranked = context.trace.unranked_processes
    if not unranked:
        return ""
    apart = _apart(context)
    if not apart:
        they, wait = ("it is", "it waits") if len(unranked) == 1 else ("they are", "they wait")
        return (
            f"{capital(_list(unranked))} {_stand(unranked)}; which rank {they}, and for whom "
            f"{wait}, is not told"
        )
    rest = [one for one in unranked if one not in apart]
    they = "it is" if len(apart) == 1 else "they are"
    return (
        f"{capital(_list(apart))} {_stand(apart)} while {_list(rest)} {_stand(rest)}; which rank "
        f"{they} is not told"
    )


def places_of_unranked(context: Context) -> tuple[str, ...]:
    """Where each of them is."""
    return tuple(
        f"{one.name}: {'in communication, ' if waits(one.stack) else ''}at {_place(one)}"
        for one in context.trace.unranked_processes[:_SHOWN]
    )


def how_to_identify(context: Context) -> str:
    """How to find out which rank such a process is."""
    unranked = context.trace.unranked_processes
    first = (_apart(context) or unranked)[0]
    pid = first.pid if first.pid is not None else "PID"
    look = f"look at {_place(first)} in {first.name}" if _apart(context) else ""
    ask = (
        f"`tr '\\0' '\\n' </proc/{pid}/environ | grep RANK` on its host tells which rank a process "
        "is; name the file of its stack after it (stack_rank_3.txt), or give the job's log as well"
    )
    return f"{look}; {ask}" if look else ask


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
    places = {_place(one) for one in those}
    at = f"at {next(iter(places))}" if len(places) == 1 else f"at {len(places)} places"
    alone = len(those) == 1
    if all(waits(one.stack) for one in those):
        return f"{'waits' if alone else 'wait'} in communication {at}"
    return f"{'is' if alone else 'are'} {at}"


def _place(one: UnrankedProcess) -> str:
    return place_of(user_frames(one.stack))


def _list(those: Sequence[UnrankedProcess]) -> str:
    if len(those) > _NAMED:
        return f"{len(those)} processes"
    return " and ".join(one.name for one in those)
