"""The evidence in a report: who waits in what, what the accused do, what logs say about them."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.duration_text import lasting
from hangscope.diagnosis.exits.dead_threads import died_of, thread_has_ended
from hangscope.diagnosis.graph.lock_places import is_lock, lock_in_words
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import GONE, Verdict
from hangscope.diagnosis.processes.failures import is_secondary
from hangscope.diagnosis.processes.process_state import ProcessState
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.processes.stacks import (
    in_python,
    innermost,
    is_library,
    user_frames,
    where,
)
from hangscope.diagnosis.records.kinds import is_sending
from hangscope.diagnosis.wording.first_times import first_times
from hangscope.diagnosis.wording.instead import instead
from hangscope.diagnosis.wording.phrases import does, not_begun, rank_s, title_of, verb
from hangscope.diagnosis.wording.proxies import proxies
from hangscope.trace.model import ExceptionFacts, Flag, Frame, RankFacts, Stack, flagged

_MOST_LINES = 17
_MOST_PAIRS = 3
_POOL = re.compile(r"[\\/]concurrent[\\/]futures[\\/]thread\.py$")


def evidence(context: Context, cause: Cause, place: Place | None) -> list[str]:
    """Lines for a report, most informative first.

    Parameters
    ----------
    place:
        The one in the summary.
    """
    places = context.waits.at(cause.places)
    ordered = sorted(places, key=lambda p: (p is not place, p.began_ns or 1 << 62))
    lines = [_waiting(context, p) for p in ordered[:6] if p.waiters]
    lines += first_times(context, cause)
    lines += proxies(context, cause)
    for rank in cause.culprits[:8]:
        lines += _accused(context, cause, rank)
    handled = handled_alone(context, cause)
    if handled is not None:
        lines.append(f"rank {handled.rank}: it issued that while handling {handled.words}")
    return lines + _logged(context, cause, room=_MOST_LINES - len(lines))


def _waiting(context: Context, place: Place) -> str:
    """Who waits at a place for how long, and where the other members are."""
    waiters = f"{does(place.waiters, 'waits')}"
    if is_lock(place):
        return f"{waiters} for {lock_in_words(place)}, which {rank_s(place.targets)} holds"
    line = f"{waiters} in {title_of(context, place)}"
    age = context.shown_age_s(context.first_still_running(place.waiters), place.began_ns)
    if age is not None:
        line += f" for {lasting(age)}"
    if place.absent:
        line += f"; {rank_s(place.absent)} never issued it"
    elif place.behind:
        line += _behind(context, place)
    if place.done:
        line += f"; {rank_s(place.done)} finished it"
    return line + _enqueued_behind(context, place)


def _enqueued_behind(context: Context, place: Place) -> str:
    """How far the hosts of waiting ranks have run on, which printed text shows in numbers only."""
    if not context.of_text.issuperset(place.waiters) or place.p2p or place.phase:
        return ""
    front = context.front
    here = (front.group == place.group) & np.isin(front.rank, place.waiters)
    ahead = sorted({int(n) - place.seq for n in front.enqueued[here] if n > place.seq})
    if not ahead:
        return ""
    many = f"{ahead[0]}" if len(ahead) == 1 else f"{ahead[0]} to {ahead[-1]}"
    return f", with {many} more enqueued behind it"


def _behind(context: Context, place: Place) -> str:
    """What holds up ranks that have issued the operation others wait in."""
    processes = {r: context.processes[r] for r in place.behind if r in context.processes}
    stopped = [r for r, process in processes.items() if process.state == "stopped"]
    gone = [r for r, process in processes.items() if process.gone and r not in stopped]
    idle = [r for r in place.not_begun if r not in gone and r not in stopped]
    held = [r for r in place.behind if r not in (*gone, *stopped, *idle)]
    line = ""
    if stopped:
        line += f"; {rank_s(stopped)} issued it and {verb(stopped, 'was')} stopped"
    if gone:
        how = "ended" if context.of_text.issuperset(gone) else "issued it and ended"
        line += f"; {rank_s(gone)} {how}"
    if idle:
        line += f"; {rank_s(idle)} issued it, and {not_begun(place)}"
    if held:
        line += f"; {rank_s(held)} issued it but {verb(held, 'is')} held up by something older"
    return line


def _accused(context: Context, cause: Cause, rank: int) -> list[str]:
    """What is known about one of the accused."""
    lines = []
    process = context.processes.get(rank)
    facts = context.trace.ranks.get(rank)
    why = context.unreadable.get(rank)
    if why:
        lines.append(f"rank {rank}: its dump cannot be read ({shortened(why, 80)})")
    if process is None or facts is None:
        return lines or [f"rank {rank}: it left no record"]
    state = _state(context, process)
    if state and not _stands_in_it(context, cause, process):
        lines.append(f"rank {rank}: {state}")
    lines += _dead_thread(facts)
    if facts.printed is not None:
        lines.append(f"rank {rank}: its log has {shortened(facts.printed.line)}, and it lived on")
    lines += _last_exchanges(context, cause, rank)
    groups = {p.group for p in context.waits.at(cause.places) if rank in p.absent and not p.p2p}
    if any(group >= 0 and thread_has_ended(context, rank, group) for group in groups):
        lines.append(f"rank {rank}: the thread that issued this group's operations has ended")
    if process.wait is not None and process.wait.helpers:
        lines.append(f"rank {rank}: it had started {', '.join(process.wait.helpers)}")
    apart = cause.verdict in (Verdict.MISSING_RANK, Verdict.DEADLOCK_CYCLE)
    if apart and not process.cannot_run and len(cause.culprits) < 4:
        lines += _other_threads(context, rank)
    return lines


def _last_exchanges(context: Context, cause: Cause, rank: int) -> list[str]:
    """Where the accused sent, or received, before what a rank waits for in vain from it."""
    records, lines = context.trace.records, []
    for place in context.waits.at(cause.places)[:_MOST_PAIRS]:
        half = place.half
        if half is None or half.peer != rank or rank not in place.absent:
            continue
        own = [
            row
            for row in context.rows_in(rank, peer=half.rank, group=half.group).tolist()
            if (signature := context.signature(row)) and is_sending(signature) != half.is_send
        ][-_MOST_PAIRS:]
        verb = "received from" if half.is_send else "sent to"
        at = [
            f"#{int(records['p2p_seq'][row])}" + (f" at {line}" if line else "")
            for row in own
            for line in [where(innermost(context.stack(row)))]
        ]
        if at:
            lines.append(f"rank {rank}: it {verb} rank {half.rank} before: {', '.join(at)}")
    return lines[:1]


def _stands_in_it(context: Context, cause: Cause, process: ProcessState) -> bool:
    """Whether a rank is still where it issued the wrong operation: then its side already says that
    it waits."""
    found = cause.mismatch
    if found is None or process.gone or process.cannot_run:
        return False
    part = next((part for part in found.parts if process.rank in part.ranks), None)
    stack = user_frames(process.stack)
    return part is not None and bool(stack) and user_frames(context.stack(part.shown)) == stack


def _state(context: Context, process: ProcessState) -> str:
    """The state of a rank's process, with what it does in brackets."""
    found, state = instead(context, process.rank), process.state
    if process.gone:
        state = found.left
    elif context.waits.out(process.rank):
        state = "waiting"
    elif process.cannot_run or state == "unknown":
        return found.doing
    return f"{state} ({found.doing})" if found.doing else state


def _logged(context: Context, cause: Cause, room: int) -> list[str]:
    """What logs say about the accused, in at most ``room`` lines but at least one."""
    lines = []
    involved = set(cause.culprits)
    for claim in context.trace.claims:
        if claim.details.two_processes:
            lines.append(claim.text)
        elif involved & set(claim.accused) or (claim.reporter in involved and claim.text):
            lines.append(f"log: {shortened(claim.text)}")
            if len(lines) >= room:
                break
    return lines


def _dead_thread(facts: RankFacts) -> list[str]:
    """What killed a thread of a rank: others may be waiting for what it was to deliver."""
    exception = facts.exception
    if exception is None or exception.is_main_thread:
        return []
    at = where(innermost(exception.stack))
    return [f"rank {facts.rank}: its {died_of(exception)}" + (f" at {at}" if at else "")]


def _other_threads(context: Context, rank: int) -> list[str]:
    """Where the other threads of an absent rank are: one of them may hold it up."""
    facts = context.trace.ranks[rank]
    shown: dict[str, str] = {}
    for thread in facts.threads:
        frame = None if thread.is_main else _works_at(thread.stack)
        if frame is not None and frame not in context.processes[rank].stack:
            shown.setdefault(thread.name, where(frame))
    return [
        f"rank {rank}: {f'its thread {name}' if name else 'a thread of it'} is at {at}"
        for name, at in [*shown.items()][:3]
    ]


def _works_at(stack: Stack) -> Frame | None:
    """Where a thread works: the user's innermost line; in what a pool runs, any that is not
    Python's. None if it does neither."""
    mine = next((frame for frame in stack if not is_library(frame)), None)
    task = next((i for i, f in enumerate(stack) if f.name == "run" and _POOL.search(f.filename)), 0)
    return mine or next((f for f in stack[:task] if not in_python(f.filename)), None)


_ENDS_OF_DATA = ("StopIteration", "StopAsyncIteration", "queue.Empty")
_MOST_TEXT = 120


class Handled(NamedTuple):
    """An exception handled by one rank but not by the others."""

    rank: int
    error: ExceptionFacts

    @property
    def words(self) -> str:
        """``ValueError: corrupt sample, raised at data.py:41 in load``."""
        message = self.error.message.partition("\n")[0]
        text = f"{self.error.type_name}: {message}" if message else self.error.type_name
        line = where(innermost(self.error.stack))
        return shortened(text, _MOST_TEXT) + (f", raised at {line}" if line else "")

    @property
    def is_end_of_data(self) -> bool:
        """Whether programs raise it to signal the end of data rather than a failure."""
        return self.error.type_name in _ENDS_OF_DATA


def handled_alone(context: Context, cause: Cause) -> Handled | None:
    """What the first of the accused handles, unless others handle something there as well.

    A job may run in an ``except`` clause from its first step to its last. An exception from a
    failed wait is nobody's own.
    """
    handling = flagged(context.trace.records["flags"], Flag.HANDLING)
    if not handling.any() or cause.verdict in GONE:
        return None
    ranks = context.trace.records["rank"]
    rows = {int(ranks[row]): int(row) for row in _rows(context, cause) if handling[row]}
    if not rows.keys() <= set(cause.culprits):
        return None
    for rank, row in sorted(rows.items()):
        error = context.trace.ranks[rank].handled
        record = context.trace.records[row]
        if (
            error is not None
            and error.at_ns <= int(record["created_ns"])
            and error.native_id in (0, int(record["thread"]))
            and not is_secondary(error.message)
        ):
            return Handled(rank, error)
    return None


def _rows(context: Context, cause: Cause) -> npt.NDArray[np.intp]:
    """The rows in which ranks reached the place in question, or their current one."""
    if cause.mismatch is not None:
        return context.rows_at(cause.mismatch.group, cause.mismatch.seq)
    newest = np.array([high - 1 for low, high in context.bounds.values() if high > low], np.intp)
    return newest[context.front.unfinished[newest]] if len(newest) else newest
