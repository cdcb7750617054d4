"""The thread whose stack shows what a rank is doing.

Usually that is the main thread. Some launchers train in another thread while the main one serves
requests or waits for it (Ray Train, notebooks, a watchdog around the job): then the thread that
issues the operations shows what holds the rank up.
"""

from __future__ import annotations

import functools
import re
from itertools import takewhile

from hangscope.diagnosis.processes.stacks import in_python, is_library
from hangscope.trace.model import NONE, RankFacts, Stack, ThreadStack, Trace

_WAITS_FOR_THREAD = re.compile(
    r"(?:^|[\\/])(?:threading|queue)\.py$|[\\/](?:concurrent[\\/]futures|asyncio)[\\/]"
)
_BETWEEN_THREADS = re.compile(r"(?:^|[\\/])(?:threading|queue)\.py$")
_POOL = re.compile(r"[\\/]concurrent[\\/]futures[\\/]thread\.py$")
_ASKS_FOR_GIL_HZ = 100.0
"""Half of how often a thread asks that waits for the GIL."""
_INNER = 3
"""A wait for another thread shows within this many innermost frames."""


def newest_threads(trace: Trace) -> dict[int, int]:
    """For each rank with records, the native id of the thread that issued its newest operation."""
    records = trace.records
    if not len(records):
        return {}
    ranks = records["rank"]
    last = [*(ranks[1:] != ranks[:-1]).nonzero()[0].tolist(), len(records) - 1]
    return dict(zip(ranks[last].tolist(), records["thread"][last].tolist(), strict=True))


def working_stack(facts: RankFacts, thread: int | None) -> Stack:
    """The stack of the main thread, or of ``thread`` if the main thread only waits for it.

    If another thread holds the GIL, its stack, as far as that can be told.
    """
    main = facts.main_stack
    if holder := _gil_holder(facts):
        return holder
    if not thread or thread == NONE or thread == facts.pid:
        return main
    own = [t for t in facts.threads if t.native_id == thread and t.stack and not t.is_main]
    if not own:
        return main
    stack = max(own, key=lambda t: t.sampled_ns).stack
    if not _has_users(stack):
        return main
    if main and _has_users(main) and (not _waits(main) or _waits(stack)):
        return main
    return stack


def _gil_holder(facts: RankFacts) -> Stack:
    """The stack of the thread that holds the GIL, if that is seen not to be the main one.

    Whoever waits for the GIL wakes every 5 ms to ask for it. Of the other threads, those in a wait
    of Python's own have given it up; only if one is left does that one hold it.
    """
    if not facts.gil_blocked or (facts.wakeups_hz or 0.0) < _ASKS_FOR_GIL_HZ:
        return ()
    newest_ns = max((thread.sampled_ns for thread in facts.threads), default=0)
    now = [t for t in facts.threads if t.sampled_ns == newest_ns and not t.is_main and t.stack]
    others = [thread.stack for thread in now if _has_users(thread.stack)]
    running = {stack for stack in others if not in_python(stack[0].filename)}
    return running.pop() if len(running) == 1 else ()


def group_stack(facts: RankFacts, thread: int, newest: int) -> Stack:
    """The stack of the thread that issued a group's operations, if a different thread goes on.

    A heartbeat, metric or checkpoint thread may hang while the main thread trains on: its own stack
    shows what the group waits for. Empty if it is the thread of the rank's newest operation, or has
    no stack.
    """
    if not thread or thread in (NONE, newest):
        return ()
    own = [t for t in facts.threads if thread in (t.native_id, facts.pid if t.is_main else 0)]
    stack = max(own, key=lambda t: t.sampled_ns).stack if own else ()
    return stack if stack and _has_users(stack) else ()


def awaited_threads(facts: RankFacts, stack: Stack) -> tuple[ThreadStack, ...]:
    """The threads in the program's own code, if the main one waits for a thread in ``stack``.

    A stack ends where the main thread awaits a result (``asyncio``, a pool, a queue, a join): what
    it awaits is at work, or hangs, in one of these; threads of a pool come first.
    """
    if stack is not facts.main_stack or not stack or not _waits(stack):
        return ()
    newest_ns = max((thread.sampled_ns for thread in facts.threads), default=0)
    now = (t for t in facts.threads if t.sampled_ns == newest_ns and not t.is_main)
    own = [thread for thread in now if thread.stack and _has_users(thread.stack)]
    return tuple(sorted(own, key=lambda thread: not _is_in_pool(thread.stack)))


def lacks_threads(facts: RankFacts, stack: Stack) -> bool:
    """Whether the main thread waits for another thread, in ``stack``, and no other one runs Python.

    What it waits for may have ended. Libraries that wait in Python may be called from native code.
    """
    below = list(takewhile(is_library, stack))
    waits = any(_BETWEEN_THREADS.search(frame.filename) for frame in below[:_INNER])
    if stack is not facts.main_stack or not waits:
        return False
    newest_ns = max((thread.sampled_ns for thread in facts.threads), default=0)
    now = [thread for thread in facts.threads if thread.sampled_ns == newest_ns]
    return all(in_python(f.filename) for f in below) and all(thread.is_main for thread in now)


def _is_in_pool(stack: Stack) -> bool:
    return any(_POOL.search(frame.filename) for frame in stack)


@functools.lru_cache(4096)
def _has_users(stack: Stack) -> bool:
    return not all(is_library(frame) for frame in stack)


@functools.lru_cache(4096)
def _waits(stack: Stack) -> bool:
    """Whether it waits below the user's innermost line; frames of a pool around that line only run
    it."""
    for frame in stack[:_INNER]:
        if not is_library(frame):
            return False
        if _WAITS_FOR_THREAD.search(frame.filename):
            return True
    return False
