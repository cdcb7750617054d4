"""Polls which operations have completed, because the operators return before that.

A `Work` pins its tensors. It is dropped when the job has waited for it, at the watcher's next turn
(within half a second), or when many have accumulated, whichever comes first. Where only a wait
shows the end, it is dropped soon after nobody else refers to it: Gloo takes an ``isend`` back that
has not gone out when its Work goes, and recording must not hide that.

There is no lock here. A thread that finds another one draining a group leaves the group to it;
every step that two threads could disturb is a run of plain stores without a call (see
`hangscope.ring.atomic`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from time import time_ns
from typing import Any

from hangscope.recording.groups import GroupState, Pending
from hangscope.recording.limits import DRAIN_AT
from hangscope.recording.lost_works import LostWorks
from hangscope.recording.user_exceptions import is_user_exception
from hangscope.ring.atomic import exclusive
from hangscope.ring.layout import (
    SLOT,
    SLOT_COMPLETED_OFFSET,
    SLOT_STATE_OFFSET,
    SlotFlag,
    group_offset,
)
from hangscope.ring.writer import RingWriter

MAX_PENDING = 1024
"""Limit on unfinished operations watched per group, as each pins its tensors."""
MAX_EXPECTED = 4096
"""Limit on operations over all groups that are watched and cannot be polled."""
_LOOK_BEHIND = 64
"""How far to search for finished operations behind an unfinished one."""
_LOOK_AT = 8
"""How many of the newest operations that show their end only to who waits are looked at when there
is another one."""
_COMPLETED = group_offset("completed") // 8
_COMPLETED_NS = group_offset("completed_ns") // 8
_P2P = int(SlotFlag.P2P)
_RETIRED = int(SlotFlag.RETIRED)
_FAILED = int(SlotFlag.FAILED)
_UNOBSERVED = int(SlotFlag.UNOBSERVED)
_WAITED = int(SlotFlag.WAITED)
_ASYNC_PAIR = int(SlotFlag.ASYNC | SlotFlag.P2P)
_NEVER = 1 << 62
_SLOT_CELLS = SLOT.itemsize // 8
_SLOT_COMPLETED = SLOT_COMPLETED_OFFSET // 8
_SLOT_STATE = SLOT_STATE_OFFSET // 8


class Completions:
    """Watches the Works of one process's groups."""

    def __init__(self, ring: RingWriter) -> None:
        import torch
        import torch.distributed as dist

        self._ring = ring
        self._q = ring.cells
        self._slots = ring.slot_at(1) // 8
        self._slot_count = ring.slot_count
        self._unbox_work = dist.Work.unbox
        self._work_box = torch.ScriptObject
        self.watched: dict[int, Pending] = {}
        """Every unboxed operation that is not known to be over, by the Work's id."""
        self._expected: dict[int, Pending] = {}
        """Those of them that cannot be polled."""
        self._lost = LostWorks()
        self.unwaited: dict[int, Pending] = {}
        """Every ``isend`` and ``irecv`` not yet waited for, by the Work's id."""
        self.boxed: deque[Pending] = deque()
        """Entries whose Work is still inside its script object. Unboxing costs half a microsecond,
        so it is deferred until the Work is polled or waited for, when the job has time."""

    def use_compiled(self, module: Any, recording: Any) -> None:
        """From now on the compiled hook boxes the Works, and marks what has finished."""
        self._unbox_work, self._work_box = module.unbox, module.BoxedWork
        self.finish = recording.finish  # type: ignore[method-assign]
        self.completed = recording.completed  # type: ignore[method-assign]

    def watch(self, entry: Pending) -> None:
        """Watch an operation that was just issued."""
        pending = entry[4].pending
        if len(pending) >= DRAIN_AT:
            self.drain(entry[4])
        pending.append(entry)
        self.watched[id(entry[1])] = entry

    def expect(self, entry: Pending) -> None:
        """Remember an operation that cannot be polled; only `waited` will tell its end."""
        self._drop_lost(self._expected, _LOOK_AT)
        if len(self._expected) >= MAX_EXPECTED:
            for old in list(self._expected.values()):
                self._give_up(old)
        self._lost.watch(entry)
        key = id(entry[1])
        self.watched[key] = self._expected[key] = entry

    def drop_lost_exchanges(self) -> None:
        """Stop watching sends and receives for which nobody can wait any more."""
        if self.unwaited:
            self._drop_lost(self.unwaited, _LOOK_AT)

    def waiting(self, work: Any) -> None:
        """Python begins to wait for a Work of ``unwaited``."""
        entry = self.unwaited.pop(id(work), None)
        if entry is None:
            return
        entry[3] |= _WAITED
        # Only add the flag: another thread may just have recorded its completion.
        cell = self._slots + (entry[0] - 1) % self._slot_count * _SLOT_CELLS
        if self._q[cell] == entry[0]:
            self._q[cell + _SLOT_STATE] |= _WAITED << 32

    def waited(self, work: Any, succeeded: bool) -> None:
        """Python has waited for a Work: it is over, whatever polling says.

        Some Works never report completion (Gloo's reduce-scatter), others only after a wait (send
        and recv).
        """
        if self.boxed:
            self.unbox()
        found = self.watched.get(id(work))
        if found is None or not (succeeded or _is_over(work)):
            return  # only the wait timed out; the operation goes on
        self._forget(work)
        record_id, _, seq, flags, state = found
        if flags & _UNOBSERVED:
            flags &= ~_UNOBSERVED
        elif not _take(state.pending, found):  # the watcher was faster
            return
        now = self.finish(record_id, flags, succeeded=succeeded)
        if flags & _P2P:
            return
        if succeeded:
            self.completed(state, seq, now)
        elif not state.failed_seq:
            state.failed_seq = seq

    def unbox(self) -> None:
        """Take all Works out of their script objects, each by a single thread.

        If another thread begins to wait for a Work while it is unboxed here, it does not find the
        entry; polling will notice the completion.
        """
        boxed, watched, unbox_work = self.boxed, self.watched, self._unbox_work
        while boxed:
            try:
                entry = boxed.popleft()
            except IndexError:  # another thread took the last one
                return
            entry[1] = work = unbox_work(entry[1])
            if entry[3] & _UNOBSERVED:
                self.expect(entry)
                continue
            watched[id(work)] = entry
            if entry[3] & _ASYNC_PAIR == _ASYNC_PAIR:
                self._lost.watch(entry)
                self.unwaited[id(work)] = entry

    def drain(self, state: GroupState, *, deep: bool = False) -> None:
        """Record which of a group's operations have finished.

        ``deep`` also searches behind an unfinished head, since independent operations may overtake
        it, and asks each whether it succeeded. The hot path does neither: if the group issues
        another operation, the previous one has not failed, or its wait has told of the failure.
        """
        if state.draining:
            return
        state.draining = True
        try:
            if self.boxed:
                self.unbox()
            self._finish_in_order(state, ask=deep)
            while len(state.pending) >= MAX_PENDING:
                self._give_up(state.pending[0])
            if deep and len(state.pending) > 1:
                self._finish_overtakers(state)
        finally:
            state.draining = False

    def _finish_in_order(self, state: GroupState, *, ask: bool) -> None:
        """Finish operations from the oldest up to the first that has not completed."""
        pending = state.pending
        while True:
            try:
                entry = pending[0]
            except IndexError:  # empty, perhaps because another thread's wait has ended
                return
            if not self._is_completed(entry):
                return
            if _take(pending, entry):
                self._finish_pending(state, entry, ask=ask)

    def _finish_overtakers(self, state: GroupState) -> None:
        """Finish completed operations behind an unfinished head, up to `_LOOK_BEHIND` of them."""
        for entry in list(state.pending)[1:_LOOK_BEHIND]:
            if self._is_completed(entry) and _take(state.pending, entry):
                self._finish_pending(state, entry, ask=True)

    def drain_all(self, states: Iterable[GroupState]) -> bool:
        """`drain` every group, called by the watcher; True if there was anything pending."""
        found = bool(self.boxed)
        self.unbox()
        self._drop_lost(self._expected, MAX_EXPECTED)
        self._drop_lost(self.unwaited, MAX_EXPECTED)
        for state in states:
            if state.pending:
                found = True
                self.drain(state, deep=True)
        return found

    def finish(self, record_id: int, flags: int, *, succeeded: bool) -> int:
        """Mark a record as finished; returns the time."""
        now = time_ns()
        q = self._q
        # `RingWriter.set_record`, inlined; like there, no call in these lines.
        cell = self._slots + (record_id - 1) % self._slot_count * _SLOT_CELLS
        if q[cell] == record_id:
            q[cell + _SLOT_COMPLETED] = now if succeeded else 0
            q[cell + _SLOT_STATE] = (
                2 | (flags | _RETIRED) << 32 if succeeded else (flags | _RETIRED | _FAILED) << 32
            )
        return now

    @exclusive
    def completed(self, state: GroupState, seq: int, now: int) -> None:
        """A collective has finished: advance the group's counter to the oldest unfinished one."""
        if not state.observable:
            return
        if seq > state.highest_done:
            state.highest_done = seq
        done = state.highest_done
        if state.pending and done > state.completed:
            unfinished = _first_unfinished(state)
            if unfinished <= done:
                done = unfinished - 1
        if state.failed_seq and state.failed_seq <= done:
            done = state.failed_seq - 1
        if done > state.completed:
            state.completed = done
            self._q[state.cells + _COMPLETED] = done
            self._q[state.cells + _COMPLETED_NS] = now

    def _drop_lost(self, entries: dict[int, Pending], most: int) -> None:
        """Of the newest of these, stop watching those for which nobody can wait any more."""
        for entry in list(islice(reversed(entries.values()), most)):
            if self._lost.is_lost(entry):
                self._give_up(entry)

    def _give_up(self, entry: Pending) -> None:
        """Stop watching an operation, which is thus not observed."""
        record_id, work, _, flags, state = entry
        self._forget(work)
        if not flags & _UNOBSERVED and _take(state.pending, entry):
            self._ring.set_record(record_id, state=0, flags=flags | _UNOBSERVED, completed_ns=0)

    def _forget(self, work: Any) -> None:
        key = id(work)
        self.watched.pop(key, None)
        if self._expected:
            self._expected.pop(key, None)
        if self.unwaited:
            self.unwaited.pop(key, None)
        self._lost.forget(work)

    def _is_completed(self, entry: Pending) -> bool:
        work = entry[1]
        if type(work) is self._work_box:  # another thread is about to unbox it
            return False
        return bool(work.is_completed())

    def _finish_pending(self, state: GroupState, entry: Pending, *, ask: bool) -> None:
        record_id, work, seq, flags, _ = entry
        self._forget(work)
        if flags & _P2P:
            self.finish(record_id, flags, succeeded=True)
        elif not ask or _succeeded(work):
            self.completed(state, seq, self.finish(record_id, flags, succeeded=True))
        else:
            self.finish(record_id, flags, succeeded=False)
            if not state.failed_seq:
                state.failed_seq = seq


def _take(pending: deque[Pending], entry: Pending) -> bool:
    """Remove an entry; False if another thread has done so since it was looked at."""
    try:
        pending.remove(entry)
    except ValueError:
        return False
    return True


def _first_unfinished(state: GroupState) -> int:
    """Sequence number of the oldest collective still watched; a huge number if there is none."""
    try:
        oldest = state.pending[0]
    except IndexError:  # another thread has emptied it
        return _NEVER
    if not oldest[3] & _P2P:
        return int(oldest[2])
    return next((seq for _, _, seq, flags, _ in list(state.pending) if not flags & _P2P), _NEVER)


def _is_over(work: Any) -> bool:
    """Whether a Work whose wait has raised says that it is over; a backend's own may not know."""
    try:
        return bool(work.is_completed())
    except Exception as error:
        if is_user_exception(error):
            raise
        return False


def _succeeded(work: Any) -> bool:
    """Whether a finished collective has a result (asking the Work itself is deprecated and prints a
    warning)."""
    try:
        future = work.get_future()
    except Exception as error:
        if is_user_exception(error):
            raise
        return True  # this backend's Works have no future, so "finished" is all there is to know
    try:
        future.value()
    except Exception as error:
        if is_user_exception(error):
            raise
        return False
    return True
