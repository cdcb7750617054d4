"""Threads that died while their rank lives on: nobody issues what they would have."""

from __future__ import annotations

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.processes.failures import is_secondary
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.trace.model import ExceptionFacts

_SEVERAL = 2


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
        or thread_has_ended(context, rank, place.group)
    }


def thread_has_ended(context: Context, rank: int, group: int) -> bool:
    """Whether the thread that issued a rank's operations in a group was not seen any more later.

    It may have handled an error and returned: what others wait for does not come either. A thread
    made for each single operation ends after it.
    """
    facts = context.trace.ranks.get(rank)
    own = context.trace.records[context.rows_in(rank, group=group)[-_SEVERAL:]]
    if facts is None or len(own) < _SEVERAL or len(set(own["thread"].tolist())) > 1:
        return False
    thread, newest_ns = int(own["thread"][-1]), int(own["created_ns"][-1])
    sampled_ns = max((t.sampled_ns for t in facts.threads), default=0)
    seen = {t.native_id for t in facts.threads if t.sampled_ns == sampled_ns}
    return thread not in {0, facts.pid, *seen} and 0 < newest_ns < sampled_ns and 0 not in seen


def died_of(exception: ExceptionFacts) -> str:
    """``thread metrics ended with KeyError: 'loss'``."""
    said = shortened(exception.first_line, 160)
    return f"thread {exception.thread_name} ended with {exception.name}" + (said and f": {said}")
