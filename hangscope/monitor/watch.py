"""The monitor's loop: follow one attempt of a job on this node until its ranks are gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TextIO

from hangscope.diagnosis.model import ENDED, Diagnosis, Finding, Verdict
from hangscope.monitor.activity import Activity, as_healthy
from hangscope.monitor.clock_steps import ClockSteps
from hangscope.monitor.config import MonitorConfig
from hangscope.monitor.corruption import Corruptions
from hangscope.monitor.doubled_ranks import DoubledRanks
from hangscope.monitor.early_words import EarlyWords
from hangscope.monitor.hardware.evidence import Hardware, failed_devices, noted
from hangscope.monitor.host_evidence import closed_addresses, doubtful_hosts
from hangscope.monitor.job_view import JobView
from hangscope.monitor.leaving_ranks import LeavingRanks
from hangscope.monitor.local_ranks import TICK_S, LocalRanks
from hangscope.monitor.log_output import print_line, print_report
from hangscope.monitor.metrics.publishing import Publishing
from hangscope.monitor.mishaps import MOST_IN_SUCCESSION, Mishaps
from hangscope.monitor.other_nodes import DELIVER_VERDICT_S
from hangscope.monitor.partial_view import stopped_host, unexplained_end
from hangscope.monitor.processes import ProcessWatch
from hangscope.monitor.report_claims import claim_report
from hangscope.monitor.report_policy import ReportPolicy, cause_of, is_final
from hangscope.monitor.ring_links import replace_ring_links
from hangscope.monitor.schedule import FIRST_LOOK_S, MAX_INTERVAL_S, LookSchedule
from hangscope.monitor.sibling_runs import Home, SiblingRuns
from hangscope.monitor.telling import Telling
from hangscope.ring.run_secret import RunSecret
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.live.open_ring import RunKey
from hangscope.trace.model import Trace

GONE_S = 0.2
"""Wait after the last process has ended, until what it wrote last is visible."""
NO_RANKS_S = 120.0
"""Give up if no rank has shown up for this long."""
FIRST_WORD_S = 1.5
"""How long to wait for what another node has found, before what is seen here is said: a container
ends soon after its launcher, and this process with it."""
LATELY_S = 30.0
"""A verdict of another node is about a standstill that was seen here less than so long ago."""
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
            config.own.of_journals if config.own is not None else RunSecret(),
            config.launcher,
        )
        self._early = EarlyWords(
            config.notice,
            lambda line: print_line(line, out),
            lambda finding: self._journal("notice", finding, time.time_ns()),
        )
        self._siblings = SiblingRuns(config.directory, config.own)
        self._corruptions = Corruptions()
        self._is_gone = False
        self._policy = ReportPolicy()
        self._hardware = Hardware()
        self._clock_steps = ClockSteps()
        self._activity = Activity()
        self._doubled = DoubledRanks()
        self._leaving = LeavingRanks(self._ranks.is_ending)
        self._hung_since_ns = 0
        self._stood = 0, -LATELY_S  # since when the ranks here stood last, and when that was seen
        self._stopped_at_s = 0.0
        self._look_cost_s = 0.0
        self._started_s = self._looked_at_s = time.monotonic()
        self._schedule = LookSchedule(config.timeout_s, changed_s=self._started_s)
        self._telling = Telling.of(os.environ, self._say)
        self._metrics = Publishing(os.environ, self._say)
        self._told: Diagnosis | None = None
        self._mishaps = Mishaps(lambda line: print_line(line, out))
        self._view = JobView(
            self._run, self._ranks, self._siblings, config.timeout_s, lambda line: self._say(line)
        )
        self._others = self._view.others
        self.last: Diagnosis | None = None

    @property
    def key(self) -> RunKey | None:
        """The attempt that is followed; None until a rank has shown up if none was given."""
        return self._ranks.key

    def up_to_followed(self) -> set[RunKey]:
        """The attempt that is followed and those that began before it."""
        return self._run.up_to_followed()

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
        if ended and self._ranks.failed_at_ns:
            self._others.hurry()  # the job's store may be gone in a moment
        counters = self._ranks.counters()
        schedule.update(counters.progress, now_s, ended=ended)
        self._metrics.update(counters.tables, self._told, self.key.run_id if self.key else "")
        if not self._ranks.seen:
            self._say_if_gone()
            return elapsed_s > NO_RANKS_S
        if not self._ranks.alive:
            if self._expects_more(now_s - schedule.changed_s) or self._others_may_stop(now_s):
                return False
            time.sleep(GONE_S)
            stalled_s = schedule.stalled_s(time.monotonic(), counters.waiting_s)
            self._mishaps.run(lambda: self._look(final=True, stalled_s=stalled_s), None)
            return True
        gathering = self._is_gathering(elapsed_s) and not self._ranks.failed_at_ns
        gathering = gathering and not self._siblings.fragments(self._ranks.rings)
        if not gathering and (schedule.is_due(now_s) or self._others.has_verdict):
            stalled_s = schedule.stalled_s(time.monotonic(), counters.waiting_s)
            overdue = now_s - self._looked_at_s > MAX_INTERVAL_S
            try:
                awaited = ended or self._ranks.failed_at_ns or self._others.has_verdict
                if stalled_s >= FIRST_LOOK_S or awaited or overdue:
                    self._look(final=False, stalled_s=stalled_s)
            finally:
                urgent, done_s = self._is_urgent(stalled_s), time.monotonic()
                stalled_s += done_s - now_s
                schedule.looked(now_s, done_s, stalled_s, self._look_cost_s, urgent=urgent)
        return False

    def _is_urgent(self, stalled_s: float) -> bool:
        """Whether another look may settle what the last one has found."""
        late = stalled_s >= self._config.timeout_s and not self._policy.has_reported
        return self._policy.is_pending or (late and self._view.has_news)

    def _say_if_gone(self) -> None:
        """Without its directory, nothing can be known of a job whose rings were not open yet."""
        if not self._is_gone and not self._config.directory.is_dir():
            self._is_gone = True
            print_line(f"not observable: {self._config.directory} is gone", self._out)

    def _end(self) -> None:
        """The watch is to end: look once more."""
        self._discover()
        if self._ranks.seen:
            self._look(final=True)

    # -- pieces ----------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        print_line(line, self._out)

    def _report_corruptions(self) -> None:
        for sentence in self._corruptions.new(self._run.findings):
            self._say(sentence)

    def _close(self) -> None:
        self._report_corruptions()
        replace_ring_links(self._config.directory)
        self._others.close()
        self._siblings.close()
        self._metrics.update(self._ranks.counters().tables, self._told, "")
        self._metrics.close()
        self._telling.finish()
        self._run.close()

    def _discover(self) -> None:
        """Look for new rings in the directory; warn if two processes claim the same rank."""
        self._ranks.discover()
        for sentence in self._doubled.news(self._run.declared_duplicates, time.monotonic()):
            self._say(sentence)

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
        if stalled_s >= self._config.timeout_s:
            self._stood = time.time_ns() - int(stalled_s * 1e9), time.monotonic()
        self._ranks.note_starting()
        trace, diagnosis = self._view.diagnosed(stalled_s)
        partly = self._view.sees_part(trace)
        if not final:
            self._early.look(trace, diagnosis, self._ranks.seen, whole=not partly)
        restrained: Diagnosis | None = diagnosis
        if partly:
            restrained = self._view.limited_to_seen(diagnosis, trace, final=final)
        else:
            restrained = self._view.whole(diagnosis, trace, final=final)
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
            self._say(f"moving again after {waited_s:.0f} s{over}")
            self._hung_since_ns, self._told = 0, None
            self._policy.moves_again(waited_s)
        self._report_news(trace, diagnosis, final=final, partly=partly, stalled_s=stalled_s)
        self._metrics.look(trace)
        self._look_cost_s = time.process_time() - began_s
        self._looked_at_s = time.monotonic()

    def _journal(self, event: str, found: Finding | Diagnosis, seen_ns: int) -> None:
        """Note in the journal what was printed, and when what it rests on was seen: what happened
        until it was printed overtakes it."""
        if self._ranks.journal is not None:
            hosts = doubtful_hosts(found, self._view.host_evidence)
            self._ranks.journal.said(event, found, hosts, seen_ns)

    def _report_news(
        self, trace: Trace, diagnosis: Diagnosis, *, final: bool, partly: bool, stalled_s: float
    ) -> None:
        """Report what is new; ``partly``: only ranks of some nodes are seen."""
        now_s = time.monotonic()
        progress = self._ranks.counters().progress
        last_word = final and partly and self._is_unexplained(diagnosis)
        others = self._others
        news = others.await_verdict(FIRST_WORD_S) if last_word else others.take_verdict()
        if news and (not self._policy.has_reported or self._policy.is_tentative):
            self._say(news)
            others.settled()
            self._policy.suppress()
            began_ns, seen_s = self._stood
            if self._ranks.alive and now_s - seen_s < LATELY_S:
                self._hung_since_ns = self._hung_since_ns or began_ns  # to say here if it goes on
            self._end_if_asked()
        elif last_word:
            stopped = self._ranks.were_stopped and stalled_s < self._config.timeout_s
            self._say_last_word(trace, diagnosis, stopped=stopped)
            if not stopped and (news := others.await_verdict()) is not None:
                self._say(news)
        elif self._policy.should_report(diagnosis, progress, final=final, now_s=now_s):
            trace, diagnosis = self._view.settled(trace, diagnosis)
            if diagnosis.findings:
                self._report(diagnosis, trace)

    def _say_last_word(self, trace: Trace, diagnosis: Diagnosis, *, stopped: bool) -> None:
        """What is seen here of why the ranks have ended, before anything ends this process, too.

        That they were ``stopped`` explains to others why theirs have lost them.
        """
        evidence = self._view.host_evidence
        if stopped and evidence.own is not None:
            self._others.publish_verdict(stopped_host(evidence.own), own=True)
        if evidence.hosts.hosts or not stopped:
            where, closed = str(self._config.directory), closed_addresses(trace, evidence)
            self._say(unexplained_end(diagnosis, where, evidence, stopped=stopped, closed=closed))
            self._policy.suppress()

    def _is_unexplained(self, diagnosis: Diagnosis) -> bool:
        """Whether the ranks here have ended, not all of them well, and nothing here says why."""
        if self._policy.has_reported or self._ranks.have_ended_well:
            return False
        return diagnosis.verdict in (Verdict.HEALTHY, Verdict.INCONCLUSIVE)

    def _report(self, diagnosis: Diagnosis, trace: Trace) -> None:
        own = diagnosis.verdict in ENDED and self._ranks.known.issuperset(diagnosis.culprits)
        alone = own and self._view.sees_part(trace)
        if alone:  # no other node has the evidence, and the job's store is gone in a moment
            self._others.publish_verdict(diagnosis.headline, own=own)
        elif not self._view.holds_first:
            time.sleep(YIELD_S)  # if monitors share a directory, the first node's reports
        diagnosis = self._with_hardware(diagnosis, trace)
        self._policy.mark_reported(diagnosis)
        self._told = self._told or diagnosis
        cause = cause_of(diagnosis.findings[0])
        started_ns = trace.ranks[min(trace.ranks)].started_ns if trace.ranks else 0
        home = self._siblings.home or Home(self._config.directory, self.key)
        if not claim_report(home.directory, home.key, cause, started_ns):
            if home.directory != self._config.directory:
                self._say(f"{diagnosis.headline} (the report is in the log of rank 0)")
            elif trace.ranks.keys() - self._ranks.known:
                self._say(f"{diagnosis.headline} (the report is in the log of another node)")
                self._journal("verdict", diagnosis, trace.observed_ns)
                self._note_hang(diagnosis)
            self._end_if_asked()  # the other monitor that has reported ends only its own ranks
            return
        elsewhere = trace.ranks.keys() - self._ranks.known or self._view.sees_part(trace)
        where = self._siblings.where(elsewhere=bool(elsewhere))
        self._ranks.note_look(trace.ranks, hung=True)
        print_report(diagnosis, where=where, out=self._out)
        if not alone:
            self._others.publish_verdict(diagnosis.headline, own=own)
        self._telling.tell(diagnosis, self.key.run_id if self.key else "")
        if not self._view.sees_part(trace):
            self._others.settled()
        self._journal("verdict", diagnosis, trace.observed_ns)
        self._note_hang(diagnosis)
        self._end_if_asked()

    def _with_hardware(self, diagnosis: Diagnosis, trace: Trace) -> Diagnosis:
        """The diagnosis that also weighs what this node's devices and links say."""
        signs = self._hardware.signs()
        claims = failed_devices(signs, trace, self._ranks.known)
        if claims:
            if self._ranks.journal is not None:
                for claim in claims:
                    self._ranks.journal.device(claim)
            diagnosis = self._view.weighing(claims, trace) or diagnosis
        return noted(diagnosis, signs)

    def _note_hang(self, diagnosis: Diagnosis) -> None:
        """Since when the job hangs, to say so if it goes on."""
        if self._ranks.alive and diagnosis.verdict not in ENDED:
            self._hung_since_ns = diagnosis.findings[0].began_ns or time.time_ns()

    def _end_if_asked(self) -> None:
        """After the report, end this node's ranks if ``HANGSCOPE_ON_HANG`` asks for it."""
        if self._config.on_hang == "kill" and self._ranks.alive:
            self._say("HANGSCOPE_ON_HANG=kill: ending the job")
            if self._others.is_connected:
                time.sleep(DELIVER_VERDICT_S)  # the store ends with the ranks
            for pid in self._ranks.kill():
                self._say(f"left alone: process {pid}, which nothing shows to be a rank")
