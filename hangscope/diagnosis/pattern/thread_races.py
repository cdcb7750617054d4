"""Threads of one rank that issue operations in one group: in which order is a matter of chance."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.records.kinds import is_on_host, records_where
from hangscope.diagnosis.records.mismatch import Mismatch
from hangscope.trace.model import Flag, Stack

_STARTS_THREAD = re.compile(
    r"(?:^|[\\/])threading\.py$|[\\/]concurrent[\\/]futures[\\/]thread\.py$"
)


def race_of_threads(context: Context, mismatch: Mismatch) -> bool:
    """Whether two user threads share the group, so that their order is a matter of chance.

    Either one side's operation comes from the main thread and the other's from a thread started by
    the rank's own Python code, on a rank whose main thread uses the group as well. Or all come from
    such threads (a pool, as in asyncio) which run side by side on one rank, or whose function a
    rank runs in several of them.
    """
    records = context.trace.records
    main, other, parallel, foreign = False, False, False, False
    for part in mismatch.parts:
        rank, thread = int(records["rank"][part.row]), int(records["thread"][part.row])
        facts = context.trace.ranks.get(rank)
        if facts is None or not facts.pid or thread <= 0:
            return False
        if thread == facts.pid:
            main = True
            continue
        own = context.rows_in(rank, group=mismatch.group)
        users = records["thread"][own]
        started = any(_STARTS_THREAD.search(f.filename) for f in context.stack(part.row)[-3:])
        foreign |= not started  # autograd's, say
        other |= started and bool((users == facts.pid).any())
        parallel |= _take_turns(users) or _overlap(context, own)
    parallel = parallel or _functions_meet(context, mismatch) or _has_twin(context, mismatch)
    return (main and other) or (parallel and not main and not foreign)


def began_unseen(context: Context, mismatch: Mismatch) -> bool:
    """Whether each side is the first that a started thread issued, and nobody saw the others then.

    A job that fails at once leaves no later sample of its threads.
    """
    records = context.trace.records
    for part in mismatch.parts:
        thread = int(records["thread"][part.row])
        if _started_with(context.stack(part.row)) is None or thread <= 0:
            return False
        for rank in part.ranks:
            own = records[context.rows_in(rank, group=mismatch.group)]
            here = own["collective_seq"] == mismatch.seq
            earlier = own["thread"][own["collective_seq"] < mismatch.seq]
            issued_ns = int(own["created_ns"][here].max(initial=0))
            seen = context.trace.ranks[rank].threads if rank in context.trace.ranks else ()
            if set(own["thread"][here].tolist()) & set(earlier.tolist()) or any(
                t.source == "sample" and t.sampled_ns > issued_ns for t in seen
            ):
                return False
    return True


def _take_turns(threads: npt.NDArray[np.int64]) -> bool:
    """Whether a thread continues after another came in between: they run in parallel."""
    turns = np.count_nonzero(threads[1:] != threads[:-1]) + 1
    return len(threads) > 0 and int(turns) > len(np.unique(threads))


def _overlap(context: Context, rows: npt.NDArray[np.int64]) -> bool:
    """Whether a thread issued something while another one still waited in what it had issued.

    On the host only: of a device's operations the caller does not wait for the end.
    """
    trace = context.trace
    before, after = trace.records[rows[:-1]], trace.records[rows[1:]]
    unknown = int(Flag.ASYNC | Flag.FAILED | Flag.UNOBSERVED)
    waits = records_where(trace, is_on_host, rows[:-1]) & ((before["flags"] & unknown) == 0)
    ended_ns = before["completed_ns"]
    unfinished = (ended_ns == 0) | (ended_ns > after["created_ns"])
    return bool((waits & unfinished & (before["thread"] != after["thread"])).any())


def _functions_meet(context: Context, mismatch: Mismatch) -> bool:
    """Whether the sides come from threads that run different functions, and a rank has both."""
    sides = {_started_with(context.stack(part.row)) for part in mismatch.parts} - {None}
    here = (context.trace.ranks[rank].threads for rank in mismatch.ranks)
    return any(len(sides & {_started_with(t.stack) for t in threads}) > 1 for threads in here)


def _has_twin(context: Context, mismatch: Mismatch) -> bool:
    """Whether a rank runs the function behind its operation in another thread as well.

    The other one may wait for a lock around the operation, so that nothing on record shows that it
    shares the group. It does not if what it issues belongs to other groups.
    """
    records = context.trace.records
    for part in mismatch.parts:
        function = _started_with(context.stack(part.row))
        for rank in part.ranks if function is not None else ():
            low, high = context.bounds[rank]
            own = records[low:high]
            at_place = (own["group"] == mismatch.group) & (own["collective_seq"] == mismatch.seq)
            elsewhere = own["thread"][own["group"] != mismatch.group]
            here = own["thread"][own["group"] == mismatch.group]
            known = {0, *own["thread"][at_place].tolist()}
            known.update(set(elsewhere.tolist()) - set(here.tolist()))
            sampled = context.trace.ranks[rank].threads if rank in context.trace.ranks else ()
            if any(
                _started_with(thread.stack) == function and thread.native_id not in known
                for thread in sampled
            ):
                return True
    return False


def _started_with(stack: Stack) -> tuple[str, str] | None:
    """The function with which a thread was started: its outermost one that is not Python's own."""
    if not stack or not _STARTS_THREAD.search(stack[-1].filename):
        return None
    own = [frame for frame in stack if not _STARTS_THREAD.search(frame.filename)]
    return (own[-1].filename, own[-1].name) if own else None
