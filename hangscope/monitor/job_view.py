"""The whole job as one node's monitor sees it: its own ranks, and what the other nodes report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import ENDED, Diagnosis
from hangscope.diagnosis.waiting.without_timeout import LEAST_S
from hangscope.monitor.activity import as_healthy
from hangscope.monitor.host_evidence import (
    HostEvidence,
    explained_by_host,
    judged_by_host,
    with_host_names,
)
from hangscope.monitor.local_ranks import TICK_S, LocalRanks
from hangscope.monitor.other_nodes import OtherNodes, may_span_nodes
from hangscope.monitor.partial_view import needs_other_nodes, restricted_to_seen
from hangscope.monitor.rank_state import is_heartbeat_late
from hangscope.monitor.sibling_runs import SiblingRuns
from hangscope.trace.digests.hosts import HostMap
from hangscope.trace.live.follow import LiveRun, is_gil_blocked
from hangscope.trace.model import Claim, Fragment, State, Trace
from hangscope.trace.units import SECOND_NS

STACKS_S = 0.3
"""Wait between requesting stacks and reading them."""
HEARTBEAT_WAIT_S = 3.0
"""Longest wait for a late heartbeat to either come or count as stopped."""
LARGE = 1024
"""Of a job with more ranks, what has not changed is not diagnosed again, and what will be found
when the timeout passes is diagnosed before."""
AHEAD_S = 20.0
"""How long before. What nodes have said by then is not too old afterwards."""
SPREAD_NS = 2 * SECOND_NS
"""Waits that begin together become overdue within so long."""
ROUNDING_NS = SECOND_NS // 100
FEW_HOSTS = 64
NEVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class _Judged:
    """A diagnosis, and what it rests on."""

    known: object
    from_ns: int
    until_ns: int
    """When time alone may change it."""
    trace: Trace
    diagnosis: Diagnosis


class JobView:
    """What is known of the job.

    Parameters
    ----------
    run, ranks, siblings:
        The rings here, the processes here, and run directories of the same job beside this one.
    timeout_s:
        ``HANGSCOPE_TIMEOUT``.
    say:
        Prints a line into the job's log.
    """

    def __init__(
        self,
        run: LiveRun,
        ranks: LocalRanks,
        siblings: SiblingRuns,
        timeout_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._run = run
        self._ranks = ranks
        self._siblings = siblings
        self._say = say
        self._asks_others = False
        """Whether the other nodes' evidence is needed to decide what was found here."""
        self._kept: list[_Judged] = []
        self._timeout_s = timeout_s
        self._seen_version = 0
        self._noted_hosts = HostMap()
        self._claims: tuple[Claim, ...] = ()
        """What this node's hardware has said."""
        self.others = OtherNodes(timeout_s)

    @property
    def holds_first(self) -> bool:
        """Whether rank 0 runs here; node ranks are no help, as launchers count them differently."""
        return 0 in self._ranks.seen

    @property
    def has_news(self) -> bool:
        """Whether other nodes have told anything since the last look."""
        self.others.receive()
        return self.others.version != self._seen_version

    def sees_part(self, trace: Trace) -> bool:
        """Whether the job has ranks on other nodes of which nothing is known here."""
        return len(trace.ranks) < (trace.world_size or 0) and self._spans_nodes(trace)

    def _spans_nodes(self, trace: Trace) -> bool:
        """Whether the job has ranks on other nodes."""
        world = trace.world_size or 0
        local = self._ranks.local_world_size
        if not local and not may_span_nodes(trace, os.environ):
            local = world
        return local != world

    def diagnosed(self, stalled_s: float) -> tuple[Trace, Diagnosis]:
        """The job's present state, including other nodes' reports, and its diagnosis."""
        timeout_ns = time.time_ns() + int((self._timeout_s - stalled_s) * SECOND_NS)
        trace, diagnosis = self._diagnosed(self._with_stacks(), stalled_s, timeout_ns)
        if diagnosis.verdict in ENDED and self._ranks.note_ends(0.1):
            # Seen as gone before its status was known, which decides between crash and exit.
            trace, diagnosis = self._diagnosed(self._looked(), stalled_s, timeout_ns)
        return trace, diagnosis

    def limited_to_seen(
        self, diagnosis: Diagnosis, trace: Trace, *, final: bool
    ) -> Diagnosis | None:
        """The diagnosis of a partial view: accuses no unseen rank, and lets node 0 report first.

        None while other nodes' reports may still change it.
        """
        if final and self._ranks.have_ended_well and not diagnosis.culprits:
            return as_healthy(diagnosis)  # what others did is not for this node to say
        asked, self._asks_others = self._asks_others, needs_other_nodes(diagnosis)
        if not final:
            patient = self.others.is_awaiting_reports() or (self._asks_others and not asked)
            if patient and (not diagnosis.findings or self._asks_others):
                return None
        return self._restricted(diagnosis, trace)

    @property
    def host_evidence(self) -> HostEvidence:
        """What is known about hosts."""
        others = self.others
        return HostEvidence(
            others.hosts, others.silent_hosts(), others.lost_store(), frozenset(self._ranks.seen)
        )

    def _restricted(self, diagnosis: Diagnosis, trace: Trace) -> Diagnosis:
        evidence = self.host_evidence
        by_host = explained_by_host(diagnosis, trace, evidence)
        if by_host is not None:
            return by_host  # it rests on what is known about hosts, not on ranks that are not seen
        return restricted_to_seen(with_host_names(diagnosis, evidence), trace.ranks)

    def whole(self, diagnosis: Diagnosis, trace: Trace, *, final: bool) -> Diagnosis | None:
        """The diagnosis of all ranks, with hosts.

        None if it names nobody and a host may still turn out not to answer.
        """
        self._asks_others = False
        nameless = bool(diagnosis.findings) and not diagnosis.findings[0].culprits
        if nameless and not final and self.others.is_awaiting_silence():
            return None
        return judged_by_host(diagnosis, trace, self.host_evidence)

    def settled(self, trace: Trace, diagnosis: Diagnosis) -> tuple[Trace, Diagnosis]:
        """Wait until a culprit's heartbeat has either stopped or turned out to be late only.

        A rank that holds the GIL gives its stack only on request, and is asked only after its
        heartbeat has been missing for long enough. That of a rank elsewhere is its node's business.
        """
        until_s = time.monotonic() + HEARTBEAT_WAIT_S
        while time.monotonic() < until_s and any(
            is_heartbeat_late(trace.ranks[rank])
            for rank in diagnosis.culprits
            if rank in trace.ranks and rank in self._ranks.seen
        ):
            time.sleep(TICK_S)
            trace = self._with_stacks(self.others.fragments())
            diagnosis = diagnose(trace)
            if self.sees_part(trace):
                diagnosis = self._restricted(diagnosis, trace)
        return trace, diagnosis

    def weighing(self, claims: Sequence[Claim], trace: Trace) -> Diagnosis | None:
        """The diagnosis with these claims, from now on; None if it finds nothing."""
        self._claims += tuple(claims)
        trace = replace(trace, claims=(*trace.claims, *claims))
        found = diagnose(trace)
        if self.sees_part(trace):
            found = self._restricted(found, trace)
        return found if found.findings else None

    # -- pieces ----------------------------------------------------------------------------

    def _diagnosed(self, own: Trace, stalled_s: float, timeout_ns: int) -> tuple[Trace, Diagnosis]:
        """``timeout_ns``: when the timeout passes, or has passed."""
        self._exchange(own, stalled_s)  # who answers tells of links what rings do not
        if not self.sees_part(own):
            return own, diagnose(own)
        self._seen_version = self.others.version
        known = (self.others.version, self.others.state, self.others.reported)
        now_ns = time.time_ns()
        kept = [one for one in self._kept if one.known == known and now_ns < one.until_ns]
        found = next((one for one in kept if one.from_ns <= now_ns), None)
        if found is None:
            found = _judged(known, self._of_all_nodes(own))
            kept = [found]
        trace = found.trace
        if len(trace.ranks) <= LARGE:
            return trace, found.diagnosis
        is_soon = 0 < timeout_ns - now_ns <= AHEAD_S * SECOND_NS
        if is_soon and kept == [found] and not found.diagnosis.findings:
            fresh = trace if found.from_ns >= now_ns else self._of_all_nodes(own)
            then_ns = last_overdue_ns(fresh, timeout_ns, timeout_ns + SPREAD_NS) + ROUNDING_NS
            ahead = _judged(known, replace(fresh, observed_ns=then_ns))
            kept = [replace(found, until_ns=then_ns), ahead]
        self._kept = kept
        here = {
            rank: replace(own.ranks[rank], host=trace.ranks[rank].host)
            for rank in self._ranks.seen
            if rank in own.ranks and rank in trace.ranks
        }
        return replace(trace, ranks={**trace.ranks, **here}), found.diagnosis

    def _of_all_nodes(self, own: Trace) -> Trace:
        """The job as all nodes see it."""
        fragments = self.others.fragments()
        return self._looked(fragments) if fragments else own

    def _exchange(self, own: Trace, stalled_s: float) -> None:
        """Tell the other nodes what is new, and read what they have told."""
        if not self._spans_nodes(own):
            return
        first, seen = self.holds_first, self._ranks.known
        if not self._ranks.are_incomplete():
            self.others.begin(own, self._ranks.seen, first=first)
        self.others.stalled(stalled_s, own, first=first, asks=self._asks_others)
        self.others.publish_report(own, seen)
        for line in self.others.notes():
            self._say(line)
        self.others.receive()
        self._note_hosts()

    def _note_hosts(self) -> None:
        """Keep who runs where for whoever analyses what is left: of a large job, on node 0 only."""
        hosts, journal = self.others.hosts, self._ranks.journal
        few = len(hosts.hosts) <= FEW_HOSTS or self.holds_first
        if few and len(hosts.hosts) > 1 and hosts != self._noted_hosts and journal is not None:
            self._noted_hosts = hosts
            journal.hosts(hosts)

    def _with_stacks(self, others: Sequence[Fragment] = ()) -> Trace:
        """A look at the ranks, including requested stacks of those that hold the GIL."""
        trace = self._looked(others)
        if self._run.ask_for_stacks(is_gil_blocked):
            time.sleep(STACKS_S)
            trace = self._looked(others)
        return trace

    def _looked(self, others: Sequence[Fragment] = ()) -> Trace:
        """A look at the ranks here, wherever they record, and at what other nodes say."""
        beside = self._siblings.fragments(self._ranks.rings)
        trace = self._run.look([*beside, *others])
        return replace(trace, claims=(*trace.claims, *self._claims)) if self._claims else trace


def _judged(known: object, trace: Trace) -> _Judged:
    """The diagnosis of a trace, which time alone does not change once it has found something."""
    diagnosis = diagnose(trace)
    until_ns = NEVER_NS if diagnosis.findings else next_overdue_ns(trace)
    return _Judged(known, trace.observed_ns, until_ns, trace, diagnosis)


def next_overdue_ns(trace: Trace) -> int:
    """When the next unfinished operation, or meeting, of a trace has lasted long enough to count.

    `NEVER_NS` if all have.
    """
    due_ns = _due_ns(trace)
    return int(due_ns[due_ns > trace.observed_ns].min(initial=NEVER_NS))


def last_overdue_ns(trace: Trace, low_ns: int, high_ns: int) -> int:
    """The same of the last one between two times; ``low_ns`` if there is none."""
    due_ns = _due_ns(trace)
    return int(due_ns[due_ns <= high_ns].max(initial=low_ns))


def _due_ns(trace: Trace) -> npt.NDArray[np.int64]:
    open_ = trace.records["state"] != int(State.COMPLETED)
    began = [phase.since_ns for facts in trace.ranks.values() for phase in facts.phases[-1:]]
    since_ns = np.concatenate([trace.records["created_ns"][open_], np.array(began, np.int64)])
    limits_ns = [int(limit_s * SECOND_NS) for limit_s in (LEAST_S, trace.timeout_s)]
    return np.concatenate([since_ns + limit_ns for limit_ns in limits_ns])
