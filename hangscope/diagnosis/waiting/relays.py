"""Members that can no longer do, or pass on, their part of a collective.

Finished is per member: rings, trees and chains hand the data from member to member, on a device by
a thread of each process. So if a member has ended, is stopped or left nothing, those behind it
cannot finish what they have issued together, even where it had finished its own part, as others
may have. That explains an unfinished collective better than a broken device of a living member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.observability import unreadable
from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.records.coverage import gaps
from hangscope.diagnosis.records.pace import had_stalled_before
from hangscope.diagnosis.waiting.collective_facts import CollectiveFacts
from hangscope.trace.model import Trace


class Relays:
    """The members of each collective that its waiters need although they have all issued it."""

    def __init__(
        self,
        trace: Trace,
        processes: Mapping[int, ProcessState],
        collectives: CollectiveFacts,
    ) -> None:
        self._trace = trace
        self._processes = processes
        self._failed_last = collectives.failed_last
        self._lost = frozenset(gaps(trace)) - unreadable(trace).keys()

    def applied(self, place: Place) -> Place:
        """The place, waiting for the members that cannot do their part; unchanged if all can."""
        if place.absent:
            return place
        broken = self._broken(place.members, place.full_ns or place.began_ns)
        if not broken:
            lost = self._lost.intersection(place.members) if self._is_shared(place) else ()
            return replace(place, unknown=tuple(sorted(lost))) if lost else place
        waiters = tuple(r for r in place.waiters if r not in broken)
        return replace(place, waiters=waiters, behind=broken)

    @staticmethod
    def _is_shared(place: Place) -> bool:
        """Whether a member that left nothing may be why some cannot finish what others have.

        It had issued that, too, and may be gone since. But if one member alone cannot finish what
        several have, its own device is as simple an explanation (`causes.lost.or_lost`).
        """
        return bool(place.done) and (len(place.waiters) > 1 or len(place.done) == 1)

    def show_unfinished(self, members: Iterable[int], row: int) -> bool:
        """Whether members that cannot do their part of this row let it count as unfinished although
        nobody would have seen its end. Not if they ended cleanly: they may have been done with it.
        """
        broken = self._broken(members, int(self._trace.records["created_ns"][row]))
        return any(self._processes[rank].end is not End.CLEAN for rank in broken)

    def _broken(self, members: Iterable[int], since_ns: int) -> tuple[int, ...]:
        return tuple(rank for rank in members if self._is_broken(rank, since_ns))

    def _is_broken(self, rank: int, since_ns: int) -> bool:
        """Whether a member has ended, or was stopped before the others had stood there for long."""
        process = self._processes.get(rank)
        if process is None:
            return False
        if process.state == "stopped" and process.end is not End.CLEAN:
            beat_ns = self._trace.ranks[rank].heartbeat_ns
            return not had_stalled_before(self._trace, since_ns, beat_ns)
        own = process.ended_by_itself
        return own and not (process.end is End.CLEAN and rank in self._failed_last)
