"""Threads that died while their rank lives on: what they would have issued nobody issues."""

from __future__ import annotations

import re
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.processes.failure_messages import is_secondary
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import base
from hangscope.diagnosis.records.mismatch import Mismatch
from hangscope.trace.model import ExceptionFacts, Stack

_STARTS_THREAD = re.compile(
    r"(?:^|[\\/])threading\.py$|[\\/]concurrent[\\/]futures[\\/]thread\.py$"
)


_C10D = ("distributed_c10d.py", "c10d_logger.py", "_functional_collectives.py")
_POOL = re.compile(r"[\\/]concurrent[\\/]futures[\\/]thread\.py$")


def dead_thread(context: Context, rank: int, group: int) -> ExceptionFacts | None:
    """What the thread ended with that issued the rank's newest operation in a group.

    None where that thread lives, where nothing tells which thread it was, and where it died of
    somebody else's failure: then it is a victim.
    """
    facts = context.trace.ranks.get(rank)
    exception = facts.exception if facts is not None else None
    if exception is None or exception.is_main_thread or not exception.native_id or group < 0:
        return None
    _, row = context.last_in_group(rank, group)
    if row < 0 or int(context.trace.records["thread"][row]) != exception.native_id:
        return None
    return None if is_secondary(f"{exception.type_name}: {exception.message}") else exception


def ranks_of_dead_threads(context: Context) -> set[int]:
    """Ranks that are waited for in a group whose thread has died there.

    Whatever their other threads wait for, this waiting does not end before that thread comes back.
    """
    return {
        rank
        for place in context.waits.places
        if place.waiters and not place.p2p
        for rank in place.absent
        if dead_thread(context, rank, place.group) is not None
    }


def died_of(exception: ExceptionFacts) -> str:
    """``thread metrics ended with KeyError: 'loss'``."""
    kind = exception.type_name.removeprefix("builtins.")
    said = exception.message.strip().splitlines()
    return f"thread {exception.thread_name} ended with {kind}" + (
        f": {shortened(said[0], 160)}" if said else ""
    )


def race_of_threads(context: Context, mismatch: Mismatch) -> bool:
    """Whether two threads of the user's share the group: then their order is a matter of chance.

    One side's operation comes from the main thread, another's from one that Python code of the
    rank's own started, on a rank whose main thread uses the group as well. Or all come from such
    threads (a pool's, as asyncio has one), and on one rank these take turns.
    """
    records = context.trace.records
    main, other, in_turns, foreign = False, False, False, False
    for part in mismatch.parts:
        rank, thread = int(records["rank"][part.row]), int(records["thread"][part.row])
        facts = context.trace.ranks.get(rank)
        if facts is None or not facts.pid or thread <= 0:
            return False
        if thread == facts.pid:
            main = True
            continue
        low, high = context.bounds[rank]
        mine = records[low:high]
        users = mine["thread"][mine["group"] == mismatch.group]
        started = any(_STARTS_THREAD.search(f.filename) for f in context.stack(part.row)[-3:])
        foreign |= not started  # autograd's, say
        other |= started and bool((users == facts.pid).any())
        in_turns |= _take_turns(users)
    return (main and other) or (in_turns and not main and not foreign)


def handed_to_a_pool(stack: Stack) -> bool:
    """Whether a pool's thread was given the collective itself: nobody's function lies between."""
    inner = list(takewhile(lambda frame: not _POOL.search(frame.filename), stack))
    return 0 < len(inner) < len(stack) and all(base(f.filename) in _C10D for f in inner)


def _take_turns(threads: npt.NDArray[np.int64]) -> bool:
    """Whether a thread goes on after another has come in between: they run side by side."""
    turns = np.count_nonzero(threads[1:] != threads[:-1]) + 1
    return len(threads) > 0 and int(turns) > len(np.unique(threads))
