"""The monitor's loop: follow one attempt of a job on this node until its ranks are gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis, Finding, Verdict
from hangscope.monitor.activity import Activity, as_healthy
from hangscope.monitor.clock_steps import ClockSteps
from hangscope.monitor.config import MonitorConfig
from hangscope.monitor.corruption import Corruptions
from hangscope.monitor.doubled_ranks import DoubledRanks
from hangscope.monitor.early_words import EarlyWords
from hangscope.monitor.hardware.evidence import with_hardware
from hangscope.monitor.leaving_ranks import LeavingRanks
from hangscope.monitor.local_ranks import TICK_S, Counters, LocalRanks
from hangscope.monitor.log_output import print_line, print_report
from hangscope.monitor.mishaps import MOST_IN_SUCCESSION, Mishaps
from hangscope.monitor.other_nodes import DELIVER_VERDICT_S, OtherNodes, may_span_nodes
from hangscope.monitor.partial_view import (
    ENDED,
    needs_other_nodes,
    restricted_to_seen,
    unexplained_end,
)
from hangscope.monitor.processes import ProcessWatch
from hangscope.monitor.rank_state import is_heartbeat_late
from hangscope.monitor.report_claims import claim_report
from hangscope.monitor.report_policy import ReportPolicy, cause_of, is_final
from hangscope.monitor.ring_links import replace_ring_links
from hangscope.monitor.schedule import FIRST_LOOK_S, MAX_INTERVAL_S, LookSchedule
from hangscope.monitor.sibling_runs import Home, SiblingRuns
from hangscope.trace.live.follow import LiveRun, is_gil_blocked
from hangscope.trace.live.rings import RunKey
from hangscope.trace.model import Fragment, Trace

GONE_S = 0.2
"""Wait after the last process has ended, until what it wrote last is visible."""
NO_RANKS_S = 120.0
"""Give up if no rank has shown up for this long."""
STACKS_S = 0.3
"""Wait between requesting stacks and reading them."""
HEARTBEAT_WAIT_S = 3.0
"""Longest wait for a late heartbeat to either come or count as stopped."""
YIELD_S = 0.7
"""How long monitors of other nodes let the one of the first node report first."""
STOPPED_S = 5.0
"""How long to wait for ranks of other nodes after those of this node were signalled to stop: a
scheduler does not reach all nodes at the same moment."""


class Monitor:
    """Follows the rings below a run directory.

    Parameters
    ----------
    config:
        What to follow.
    out:
        Where to print; stderr by default.
    keep_going:
        Called at every tick; False ends the watch after a last look (used by `hangscope run` when
        its command has ended).
    skip:
        Attempts that were followed before.
    processes:
        Watches the ranks' processes; a new one by default.
    """

    def __init__(
        self,
        config: MonitorConfig,
        *,
        out: TextIO | None = None,
        keep_going: Callable[[], bool] = lambda: True,
        skip: frozenset[RunKey] = frozenset(),
        processes: ProcessWatch | None = None,
    ) -> None:
        self._config = config
        self._out = out
        self._keep_going = keep_going
        self._run = LiveRun(config.directory, config.key, skip=skip, own=config.own)
        self._ranks = LocalRanks(
            self._run,
            config.directory,
            config.key,
            config.local_world_size,
            processes or ProcessWatch(),
            config.launcher,
        )
        self._early = EarlyWords(
            config.notice,
            lambda line: print_line(line, out),
            lambda finding: self._journal("notice", finding),
        )
        self._siblings = SiblingRuns(config.directory, config.own)
        self._corruptions = Corruptions()
        self._policy = ReportPolicy()
        self._clock_steps = ClockSteps()
        self._activity = Activity()
        self._doubled = DoubledRanks()
        self._leaving = LeavingRanks(self._ranks.is_ending)
        self._hung_since_ns = 0
        self._stopped_at_s = 0.0
        self._look_cost_s = 0.0
        self._started_s = self._looked_at_s = time.monotonic()
        self._schedule = LookSchedule(config.timeout_s, changed_s=self._started_s)
        self._mishaps = Mishaps(lambda line: print_line(line, out))
        self._others: OtherNodes | None = None
        self._asks_others = False
        """Whether the other nodes' evidence is needed to decide what was found here."""
        self.last: Diagnosis | None = None

    @property
    def key(self) -> RunKey | None:
        """The attempt that is followed; None until a rank has shown up if none was given."""
        return self._ranks.key

    @property
    def _holds_first(self) -> bool:
        """Whether rank 0 runs here; node ranks are no help, as launchers count them differently."""
        return 0 in self._ranks.seen

    def follow(self) -> Diagnosis | None:
        """Watch until the ranks are gone; returns the last diagnosis, None without any rank."""
        is_over = False
        while not is_over and self._keep_going():
            hopeless = self._mishaps.in_succession > MOST_IN_SUCCESSION and not self._ranks.alive
            is_over = hopeless or self._mishaps.run(self._tick, False)
        if not is_over:
            self._mishaps.run(self._end, None)
        self._mishaps.run(self._close, None)
        return self.last

    def _tick(self) -> bool:
        """Wait a little, and look at the job if that is due; True if its ranks are gone."""
        schedule, ended = self._schedule, self._ranks.note_ends(TICK_S)
        now_s = time.monotonic()
        elapsed_s = now_s - self._started_s
        self._discover()
        self._report_corruptions()
        counters = self._ranks.counters()
        schedule.update(counters.progress, now_s, ended=ended)
        if not self._ranks.seen:
            return elapsed_s > NO_RANKS_S
        if not self._ranks.alive:
            if self._expects_more(now_s - schedule.changed_s) or self._others_may_stop(now_s):
                return False
            time.sleep(GONE_S)
            stalled_s = _stalled_s(schedule, counters)
            self._mishaps.run(lambda: self._look(final=True, stalled_s=stalled_s), None)
            return True
        gathering = self._is_gathering(elapsed_s) and not self._ranks.failed_at_ns
        gathering = gathering and not self._siblings.fragments(self._ranks.rings)
        if not gathering and schedule.is_due(now_s):
            stalled_s = _stalled_s(schedule, counters)
            overdue = now_s - self._looked_at_s > MAX_INTERVAL_S
            try:
                if stalled_s >= FIRST_LOOK_S or ended or self._ranks.failed_at_ns or overdue:
                    self._look(final=False, stalled_s=stalled_s)
            finally:
                schedule.looked(time.monotonic(), stalled_s, self._look_cost_s)
        return False

    def _end(self) -> None:
        """The watch is to end: look once more."""
        self._discover()
        if self._ranks.seen:
            self._look(final=True)

    # -- pieces ----------------------------------------------------------------------------

    def _report_corruptions(self) -> None:
        for sentence in self._corruptions.new(self._run.findings):
            print_line(sentence, self._out)

    def _close(self) -> None:
        self._report_corruptions()
        replace_ring_links(self._config.directory)
        if self._others is not None:
            self._others.close()
        self._siblings.close()
        self._run.close()

    def _discover(self) -> None:
        """Look for new rings in the directory; warn if two processes claim the same rank."""
        self._ranks.discover()
        for sentence in self._doubled.news(self._run.declared_duplicates, time.monotonic()):
            print_line(sentence, self._out)
        if self._others is None and self._ranks.seen and self.key is not None:
            self._others = OtherNodes(self._config.timeout_s)

    def _is_gathering(self, elapsed_s: float) -> bool:
        """Whether ranks of this node are missing that may still be importing torch.

        They may take as long as the time-out, and longer while they are busy with it.
        """
        busy = self._ranks.are_starting() and elapsed_s < NO_RANKS_S
        return busy or (self._ranks.are_incomplete() and elapsed_s < self._config.timeout_s)

    def _expects_more(self, idle_s: float) -> bool:
        """Whether ranks of this node may still be starting (a slower torch import)."""
        return self._ranks.are_incomplete() and idle_s < 5.0

    def _others_may_stop(self, now_s: float) -> bool:
        """Whether all ranks here were signalled to stop and ranks of other nodes may still be.

        Only if those live on was it this node alone that was stopped.
        """
        if not self._ranks.were_stopped:
            return False
        self._stopped_at_s = self._stopped_at_s or now_s
        if now_s - self._stopped_at_s >= STOPPED_S:
            return False
        facts = self._run.look().ranks
        return any(f.exit is None and r not in self._ranks.seen for r, f in facts.items())

    def _look(self, *, final: bool, stalled_s: float = 0.0) -> None:
        """Look at the job once and report what is new."""
        began_s = time.process_time()
        self._ranks.note_starting()
        trace, diagnosis = self._diagnosed(stalled_s)
        partly = self._sees_part(trace)
        if not final and not partly:
            diagnosis = self._early.look(trace, diagnosis, self._ranks.seen)
        restrained = self._limited_to_seen(diagnosis, trace, final=final) if partly else diagnosis
        self._asks_others = self._asks_others and partly
        set_lately = self._clock_steps.within(self._config.timeout_s)
        if not final and set_lately and not is_final(diagnosis):
            restrained = None  # it is not known how long anybody has waited
        diagnosis = restrained or as_healthy(diagnosis)
        if not final:
            here = [trace.ranks[rank] for rank in self._ranks.seen if rank in trace.ranks]
            diagnosis = self._activity.unless_busy(diagnosis, self._ranks.seen.values(), here)
        self.last = diagnosis
        self._ranks.note_look(trace.ranks, hung=bool(diagnosis.findings))
        if not final and self._leaving.are_awaited(trace, diagnosis, time.monotonic()):
            return
        is_well = diagnosis.verdict is Verdict.HEALTHY and restrained is not None
        if self._hung_since_ns and is_well and (not final or self._ranks.have_ended_well):
            waited_s = (time.time_ns() - self._hung_since_ns) / 1e9
            over = ": all ranks have ended with status 0" if final else ""
            print_line(f"moving again after {waited_s:.0f} s{over}", self._out)
            self._hung_since_ns = 0
        self._report_news(trace, diagnosis, final=final, partly=partly, stalled_s=stalled_s)
        self._look_cost_s = time.process_time() - began_s
        self._looked_at_s = time.monotonic()

    def _journal(self, event: str, found: Finding | Diagnosis) -> None:
        """Note in the journal what was printed."""
        if self._ranks.journal is not None:
            confidence = found.confidence.value
            self._ranks.journal.said(
                event, found.verdict.value, found.culprits, found.summary, confidence
            )

    def _diagnosed(self, stalled_s: float) -> tuple[Trace, Diagnosis]:
        """The job's present state, including other nodes' reports, and its diagnosis."""
        trace = self._with_other_nodes(self._with_stacks(), stalled_s)
        diagnosis = diagnose(trace)
        if diagnosis.verdict in ENDED and self._ranks.note_ends(0.1):
            # Seen as gone before its status was known, which decides between crash and exit.
            trace = self._with_other_nodes(self._looked(), stalled_s)
            diagnosis = diagnose(trace)
        return trace, diagnosis

    def _report_news(
        self, trace: Trace, diagnosis: Diagnosis, *, final: bool, partly: bool, stalled_s: float
    ) -> None:
        """Report what is new; ``partly``: only ranks of some nodes are seen."""
        now_s = time.monotonic()
        progress = self._ranks.counters().progress
        if (
            news := self._others.take_verdict() if self._others else None
        ) and not self._policy.has_reported:
            print_line(f"{news} (the report is in the log of node 0)", self._out)
            self._policy.suppress()
            self._end_if_asked()
        elif self._policy.should_report(diagnosis, progress, final=final, now_s=now_s):
            if final and partly and diagnosis.verdict is Verdict.INCONCLUSIVE:
                # Every elastic restart ends like this, so there may be nothing to explain.
                if not (self._ranks.were_stopped and stalled_s < self._config.timeout_s):
                    print_line(unexplained_end(diagnosis, str(self._config.directory)), self._out)
                return
            trace, diagnosis = self._await_heartbeat(trace, diagnosis)
            if diagnosis.findings:
                self._report(diagnosis, trace)

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
        return self._run.look([*beside, *others])

    def _sees_part(self, trace: Trace) -> bool:
        """Whether the job has ranks on other nodes of which nothing is known here."""
        world = trace.world_size or 0
        local = self._ranks.local_world_size
        if not local and not may_span_nodes(trace, os.environ):
            local = world
        return len(trace.ranks) < world != local

    def _await_heartbeat(self, trace: Trace, diagnosis: Diagnosis) -> tuple[Trace, Diagnosis]:
        """Wait until a culprit's heartbeat has either stopped or turned out to be late only.

        A rank that holds the GIL gives its stack only on request, and is asked only after its
        heartbeat has been missing for long enough.
        """
        until_s = time.monotonic() + HEARTBEAT_WAIT_S
        while time.monotonic() < until_s and any(
            is_heartbeat_late(trace.ranks[rank])
            for rank in diagnosis.culprits
            if rank in trace.ranks
        ):
            time.sleep(TICK_S)
            trace = self._with_stacks(self._others.fragments() if self._others else ())
            diagnosis = diagnose(trace)
            if self._sees_part(trace):
                diagnosis = restricted_to_seen(diagnosis, trace.ranks)
        return trace, diagnosis

    def _with_other_nodes(self, trace: Trace, stalled_s: float) -> Trace:
        """Add other nodes' reports if only some of the job's ranks are on this node."""
        if self._others is None or not self._sees_part(trace):
            return trace
        rings = [(ring.rank, ring.reader.path) for ring in self._ranks.rings]
        self._others.stalled(stalled_s, trace, first=self._holds_first, asks=self._asks_others)
        self._others.publish_report(trace, rings)
        for line in self._others.notes():
            print_line(line, self._out)
        fragments = self._others.fragments()
        return self._looked(fragments) if fragments else trace

    def _limited_to_seen(
        self, diagnosis: Diagnosis, trace: Trace, *, final: bool
    ) -> Diagnosis | None:
        """The diagnosis of a partial view: accuses no unseen rank, and lets node 0 report first.

        None while other nodes' reports may still change it.
        """
        asked, self._asks_others = self._asks_others, needs_other_nodes(diagnosis)
        if not final and self._others is not None:
            patient = self._others.is_awaiting_reports() or (self._asks_others and not asked)
            if patient and (not diagnosis.findings or self._asks_others):
                return None
        return restricted_to_seen(diagnosis, trace.ranks)

    def _report(self, diagnosis: Diagnosis, trace: Trace) -> None:
        if not self._holds_first:
            time.sleep(YIELD_S)  # if monitors share a directory, the first node's reports
        self._policy.mark_reported(diagnosis)
        cause = cause_of(diagnosis.findings[0])
        started_ns = trace.ranks[min(trace.ranks)].started_ns if trace.ranks else 0
        home = self._siblings.home or Home(self._config.directory, self.key)
        if not claim_report(home.directory, home.key, cause, started_ns):
            if home.directory != self._config.directory:
                print_line(f"{diagnosis.headline} (the report is in the log of rank 0)", self._out)
            self._end_if_asked()  # the other monitor that has reported ends only its own ranks
            return
        elsewhere = trace.ranks.keys() - self._ranks.known or self._sees_part(trace)
        where = self._siblings.where(elsewhere=bool(elsewhere))
        self._ranks.note_look(trace.ranks, hung=True)
        print_report(with_hardware(diagnosis), where=where, out=self._out)
        if self._others is not None:
            self._others.publish_verdict(diagnosis.summary)
        self._journal("verdict", diagnosis)
        if not self._ranks.alive:
            return
        if diagnosis.verdict not in ENDED:
            self._hung_since_ns = diagnosis.findings[0].began_ns or time.time_ns()
        self._end_if_asked()

    def _end_if_asked(self) -> None:
        """After the report, end this node's ranks if ``HANGSCOPE_ON_HANG`` asks for it."""
        if self._config.on_hang == "kill" and self._ranks.alive:
            print_line("HANGSCOPE_ON_HANG=kill: ending the job", self._out)
            if self._others is not None and self._others.is_connected:
                time.sleep(DELIVER_VERDICT_S)  # the store ends with the ranks
            for pid in self._ranks.kill():
                print_line(
                    f"left alone: process {pid}, which nothing shows to be a rank", self._out
                )


def _stalled_s(schedule: LookSchedule, counters: Counters) -> float:
    """How long there was no progress here, or the longest wait if that is longer."""
    return max(time.monotonic() - schedule.changed_s, counters.waiting_s)
