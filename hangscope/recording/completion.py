"""Which of the issued operations are finished: polled, because the operators return before that.

A `Work` pins its tensors, so it is dropped when the job has waited for it, at the watcher's next
turn (a tenth of a second), or when many have gathered, whichever comes first.

There is no lock here. A thread that finds another one at work in a group leaves it to that one;
every step that two threads could disturb is a run of plain stores without a call, between which
the interpreter does not switch threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import time_ns
from typing import Any

from hangscope.recording.foreign import is_foreign
from hangscope.recording.groups import GroupState, Pending
from hangscope.ring.layout import SlotFlag, group_offset
from hangscope.ring.writer import RingWriter

MAX_PENDING = 1024
"""Unfinished operations watched per group; each pins its tensors, so there is a bound."""
DRAIN_AT = 32
"""So many unfinished operations of a group are looked through at once by the next one."""
MAX_EXPECTED = 4096
"""Bound on all that are watched, over all groups."""
_LOOK_BEHIND = 64
"""How far behind an unfinished head finished operations are looked for."""
_COMPLETED = group_offset("completed") // 8
_COMPLETED_NS = group_offset("completed_ns") // 8
_P2P = int(SlotFlag.P2P)
_RETIRED = int(SlotFlag.RETIRED)
_FAILED = int(SlotFlag.FAILED)
_UNOBSERVED = int(SlotFlag.UNOBSERVED)


class Completions:
    """Watches the Works of one process's groups."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        self._q = ring.cells
        self._watched: dict[int, tuple[GroupState, Pending]] = {}

    def watch(self, state: GroupState, entry: Pending) -> None:
        """Watch an operation that was just issued."""
        pending = state.pending
        if len(pending) >= MAX_PENDING:
            try:
                dropped, oldest, _, flags = pending.popleft()
            except IndexError:  # another thread has emptied it meanwhile
                pass
            else:
                self._watched.pop(id(dropped), None)
                self._ring.set_record(oldest, state=0, flags=flags | _UNOBSERVED, completed_ns=0)
        pending.append(entry)
        self._watched[id(entry[0])] = (state, entry)

    def expect(self, state: GroupState, entry: Pending) -> None:
        """Remember an operation of which only `waited` will tell; nothing is polled."""
        if len(self._watched) >= MAX_EXPECTED:
            self._watched.clear()  # they stay what they are on record: not observed
        self._watched[id(entry[0])] = (state, entry)

    def waited(self, work: Any, *, succeeded: bool) -> None:
        """Python waited for a Work: it is over, whatever polling says.

        Some Works never say that they are done (Gloo's reduce-scatter), others only once they were
        waited for (send and recv).
        """
        found = self._watched.get(id(work))
        if found is None or not (succeeded or work.is_completed()):
            return  # the wait ran into its own time limit: the operation goes on
        self._watched.pop(id(work), None)
        state, entry = found
        _, record_id, seq, flags = entry
        if flags & _UNOBSERVED:
            flags &= ~_UNOBSERVED
        else:
            try:
                state.pending.remove(entry)
            except ValueError:  # the watcher was here
                return
        now = self.finish(record_id, flags, succeeded=succeeded)
        if flags & _P2P:
            return
        if succeeded:
            self.completed(state, seq, now)
        elif not state.failed_seq:
            state.failed_seq = seq

    def drain(self, state: GroupState, *, deep: bool = False) -> None:
        """Note which of a group's operations have finished.

        ``deep`` also looks behind an unfinished head, as independent operations overtake, and asks
        each whether it succeeded. The hot path does not: where the group goes on to issue another
        operation, the one before has not failed, or its failure was told by its wait.
        """
        if state.draining:
            return
        state.draining = True
        try:
            pending = state.pending
            while pending:
                entry = pending[0]
                if not entry[0].is_completed():
                    break
                pending.popleft()
                self._finish_pending(state, entry, ask=deep)
            if deep and len(pending) > 1:
                for entry in list(pending)[1:_LOOK_BEHIND]:
                    if entry[0].is_completed():
                        pending.remove(entry)
                        self._finish_pending(state, entry, ask=True)
        finally:
            state.draining = False

    def drain_all(self, states: Iterable[GroupState]) -> None:
        """`drain` for every group: the watcher's turn."""
        for state in states:
            if state.pending:
                self.drain(state, deep=True)

    def finish(self, record_id: int, flags: int, *, succeeded: bool) -> int:
        """Mark a record as finished; returns the time."""
        now = time_ns()
        if succeeded:
            self._ring.set_record(record_id, state=2, flags=flags | _RETIRED, completed_ns=now)
        else:
            self._ring.set_record(
                record_id, state=0, flags=flags | _RETIRED | _FAILED, completed_ns=0
            )
        return now

    def completed(self, state: GroupState, seq: int, now: int) -> None:
        """A collective is finished: move the group's counter as far as nothing stands before it."""
        if not state.observable:
            return
        if seq > state.highest_done:
            state.highest_done = seq
        done = state.highest_done
        if state.pending:
            unfinished = _first_unfinished(state)
            if unfinished is not None and unfinished <= done:
                done = unfinished - 1
        if state.failed_seq and state.failed_seq <= done:
            done = state.failed_seq - 1
        if done > state.completed:
            state.completed = done
            self._q[state.cells + _COMPLETED] = done
            self._q[state.cells + _COMPLETED_NS] = now

    def _finish_pending(self, state: GroupState, entry: Pending, *, ask: bool) -> None:
        work, record_id, seq, flags = entry
        self._watched.pop(id(work), None)
        if flags & _P2P:
            self.finish(record_id, flags, succeeded=True)
        elif not ask or _succeeded(work):
            self.completed(state, seq, self.finish(record_id, flags, succeeded=True))
        else:
            self.finish(record_id, flags, succeeded=False)
            if not state.failed_seq:
                state.failed_seq = seq


def _first_unfinished(state: GroupState) -> int | None:
    """Sequence number of the oldest collective that is still watched, or None."""
    for _, _, seq, flags in list(state.pending):
        if not flags & _P2P:
            return seq
    return None


def _succeeded(work: Any) -> bool:
    """Whether a finished collective's result is there (asking the Work itself is deprecated, and
    says so on stderr)."""
    try:
        future = work.get_future()
    except Exception as error:
        if is_foreign(error):
            raise
        return True  # this backend's Works carry no future: finished is all there is to know
    try:
        future.value()
    except Exception as error:
        if is_foreign(error):
            raise
        return False
    return True
