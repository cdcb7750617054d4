"""Threads that died while their rank lives on: nobody issues what they would have."""

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
    """The exception that ended the thread which issued the rank's newest operation in a group.

    None if that thread lives or is unknown, or if it died of another rank's failure: then it is a
    victim.
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
    """Awaited ranks whose thread for that group has died.

    Whatever their other threads wait for, the wait for these ranks does not end before that thread
    returns.
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
    """Whether two user threads share the group, so that their order is a matter of chance.

    Either one side's operation comes from the main thread and the other's from a thread started by
    the rank's own Python code, on a rank whose main thread uses the group as well. Or all come from
    such threads (a pool, as in asyncio) which interleave on one rank.
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
    """Whether the collective itself was submitted to a pool: no user function in between."""
    inner = list(takewhile(lambda frame: not _POOL.search(frame.filename), stack))
    return 0 < len(inner) < len(stack) and all(base(f.filename) in _C10D for f in inner)


def _take_turns(threads: npt.NDArray[np.int64]) -> bool:
    """Whether a thread continues after another came in between: they run in parallel."""
    turns = np.count_nonzero(threads[1:] != threads[:-1]) + 1
    return len(threads) > 0 and int(turns) > len(np.unique(threads))
