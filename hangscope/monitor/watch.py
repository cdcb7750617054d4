"""The monitor's loop: follow one attempt of a job on this node until its ranks are gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis, Verdict
from hangscope.monitor.clock_steps import ClockSteps
from hangscope.monitor.corruption import Corruptions
from hangscope.monitor.helper_processes import BUSY, STIRS, Helpers
from hangscope.monitor.local_ranks import TICK_S, Counters, LocalRanks
from hangscope.monitor.log_output import say, speak
from hangscope.monitor.main_threads import MainThreads
from hangscope.monitor.other_nodes import HAND_ON_S, OtherNodes, may_span_nodes
from hangscope.monitor.partial_view import (
    ENDED,
    in_one_line,
    is_for_all_to_tell,
    only_what_is_seen,
)
from hangscope.monitor.processes import ProcessWatch
from hangscope.monitor.rank_state import has_failed, is_leaving, is_silent
from hangscope.monitor.report_claims import claim
from hangscope.monitor.report_policy import Judge, cause_of, is_on_record
from hangscope.monitor.ring_links import mirror
from hangscope.monitor.schedule import FIRST_LOOK_S, MAX_INTERVAL_S, Pace
from hangscope.trace.job_selection.duplicate_ranks import DuplicateRank
from hangscope.trace.live.follow import LiveRun, is_gil_blocked
from hangscope.trace.live.rings import RunKey
from hangscope.trace.model import Fragment, Trace

GONE_S = 0.2
"""Once no process is left: what it wrote last has to arrive."""
NO_RANKS_S = 120.0
"""Give up when no rank has shown up for so long."""
STACKS_S = 0.3
"""Between asking for stacks and reading them."""
PULSE_S = 3.0
"""How long to wait until a late heartbeat counts as stopped."""
LEAVING_S = 10.0
"""How long a rank may take to get out of the interpreter before it is judged without its status."""
YIELD_S = 0.7
"""How long the monitors of other nodes let the first node's speak."""
STOPPED_S = 5.0
"""Once the ranks of this node were told to stop, how long those of others may still live: a
scheduler does not reach all nodes at one moment."""
DOUBLED_S = 2.0
"""How long two processes are one rank until that is said: a first try may have failed."""


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """What to follow and how to react."""

    directory: Path
    key: RunKey | None
    local_world_size: int
    timeout_s: float
    on_hang: str = "report"


class Monitor:
    """Follows the rings below a run directory.

    Parameters
    ----------
    config:
        What to follow.
    out:
        Where to speak; stderr by default.
    keep_going:
        Called at every tick; False ends the watch after a last look (`hangscope run` uses it: its
        command has ended).
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
        self._run = LiveRun(config.directory, config.key, skip=skip)
        self._ranks = LocalRanks(
            self._run,
            config.directory,
            config.key,
            config.local_world_size,
            processes or ProcessWatch(),
        )
        self._corruptions = Corruptions()
        self._judge = Judge()
        self._clock_steps = ClockSteps()
        self._helpers = Helpers()
        self._main_threads = MainThreads()
        self._doubled: dict[DuplicateRank, float] = {}
        self._doubled_said: set[int] = set()
        self._hung_since_ns = 0
        self._leaving_since_s = 0.0
        self._stopped_at_s = 0.0
        self._look_cost_s = 0.0
        self._looked_at_s = time.monotonic()
        self._others: OtherNodes | None = None
        self._asks = False
        """Whether this node has found what the others have to decide."""
        self.last: Diagnosis | None = None

    @property
    def key(self) -> RunKey | None:
        """The attempt that is followed; None until a rank has shown up where any would do."""
        return self._ranks.key

    @property
    def _holds_first(self) -> bool:
        """Whether this is the node of rank 0: launchers do not agree on numbers of nodes."""
        return 0 in self._ranks.seen

    def follow(self) -> Diagnosis | None:
        """Watch until the ranks are gone; returns the last diagnosis, None if no rank came."""
        started_s = time.monotonic()
        pace = Pace(self._config.timeout_s, changed_s=started_s)
        while self._keep_going():
            ended = self._ranks.note_ends(TICK_S)
            now_s = time.monotonic()
            self._discover()
            self._say_corruptions()
            counters = self._ranks.counters()
            pace.note(counters.progress, now_s, ended=ended)
            if self._ranks.seen and not self._ranks.alive:
                if self._expects_more(now_s - pace.changed_s) or self._others_may_stop(now_s):
                    continue
                time.sleep(GONE_S)
                self._look(final=True, stalled_s=_stalled_s(pace, counters))
                break
            if not self._ranks.seen and now_s - started_s > NO_RANKS_S:
                break
            if self._is_gathering(now_s - started_s) and not self._ranks.failed_at_ns:
                continue
            if self._ranks.seen and pace.is_due(now_s):
                stalled_s = _stalled_s(pace, counters)
                overdue = now_s - self._looked_at_s > MAX_INTERVAL_S
                if stalled_s >= FIRST_LOOK_S or ended or self._ranks.failed_at_ns or overdue:
                    self._look(final=False, stalled_s=stalled_s)
                pace.looked(time.monotonic(), stalled_s, self._look_cost_s)
        else:
            self._discover()
            if self._ranks.seen:
                self._look(final=True)
        self._close()
        return self.last

    # -- pieces ----------------------------------------------------------------------------

    def _say_corruptions(self) -> None:
        for sentence in self._corruptions.new(self._run.findings):
            say(sentence, self._out)

    def _close(self) -> None:
        self._say_corruptions()
        mirror(self._config.directory)
        if self._others is not None:
            self._others.close()
        self._run.close()

    def _discover(self) -> None:
        """Look for new rings, and for what else they tell; lists the directory."""
        self._ranks.discover()
        doubled = self._run.declared_twins
        self._doubled = {pair: self._doubled.get(pair, time.monotonic()) for pair in doubled}
        for pair, since_s in self._doubled.items():
            if pair.rank not in self._doubled_said and time.monotonic() - since_s >= DOUBLED_S:
                self._doubled_said.add(pair.rank)
                say(pair.text, self._out)
        if self._others is None and self._ranks.seen and self.key is not None:
            self._others = OtherNodes(self._config.timeout_s)

    def _is_gathering(self, elapsed_s: float) -> bool:
        """Whether ranks of this node have yet to show up, and may still be importing torch."""
        return self._ranks.are_incomplete() and elapsed_s < self._config.timeout_s

    def _expects_more(self, idle_s: float) -> bool:
        """Whether ranks of this node may still be on their way (their torch import is slower)."""
        return self._ranks.are_incomplete() and idle_s < 5.0

    def _others_may_stop(self, now_s: float) -> bool:
        """Whether all ranks here were told to stop, and others of this directory may yet be.

        Only where these live on was it this node alone.
        """
        if not self._ranks.were_stopped:
            return False
        self._stopped_at_s = self._stopped_at_s or now_s
        if now_s - self._stopped_at_s >= STOPPED_S:
            return False
        facts = self._run.look().ranks
        return any(f.exit is None and r not in self._ranks.seen for r, f in facts.items())

    def _look(self, *, final: bool, stalled_s: float = 0.0) -> None:
        """Look at the job once, and say what has to be said of it."""
        began_s = time.process_time()
        trace, diagnosis = self._diagnosed(stalled_s)
        partly = self._sees_part(trace)
        restrained = self._restrained(diagnosis, trace, final=final) if partly else diagnosis
        self._asks = self._asks and partly
        set_lately = self._clock_steps.within(self._config.timeout_s)
        if not final and set_lately and not is_on_record(diagnosis):
            restrained = None  # for how long anybody has waited is not known
        diagnosis = self._unless_at_work(restrained or _well(diagnosis), trace, final=final)
        self.last = diagnosis
        self._ranks.note_look(trace.ranks, hung=bool(diagnosis.findings))
        if not final and self._awaits_ends(trace, diagnosis):
            return  # a rank on its way out decides between crash and exit: wait for its status
        is_well = diagnosis.verdict is Verdict.HEALTHY and restrained is not None
        if self._hung_since_ns and is_well and (not final or self._ranks.have_ended_well):
            waited_s = (time.time_ns() - self._hung_since_ns) / 1e9
            over = ": all ranks have ended with status 0" if final else ""
            say(f"moving again after {waited_s:.0f} s{over}", self._out)
            self._hung_since_ns = 0
        self._tell(trace, diagnosis, final=final, partly=partly, stalled_s=stalled_s)
        self._look_cost_s = time.process_time() - began_s
        self._looked_at_s = time.monotonic()

    def _diagnosed(self, stalled_s: float) -> tuple[Trace, Diagnosis]:
        """The job as it is now, on all nodes that are heard of, and what is wrong with it."""
        trace = self._with_other_nodes(self._with_stacks(), stalled_s)
        diagnosis = diagnose(trace)
        if diagnosis.verdict in ENDED and self._ranks.note_ends(0.1):
            # Seen as gone before it was known how: the status decides between crash and exit.
            trace = self._with_other_nodes(self._run.look(), stalled_s)
            diagnosis = diagnose(trace)
        return trace, diagnosis

    def _unless_at_work(self, diagnosis: Diagnosis, trace: Trace, *, final: bool) -> Diagnosis:
        """The diagnosis; healthy where no collective waits and something of the ranks still runs.

        All of them may wait for a compiler of theirs, or make one remote call after another.
        """
        if final:
            return diagnosis
        pids = self._ranks.seen.values()
        if diagnosis.verdict is Verdict.QUIESCENT:
            # Where only what ranks do at the end is left, whatever is done there takes its time.
            least = STIRS if diagnosis.findings[0].unchanged_s else BUSY
            if self._helpers.at_work(pids, least=least):
                diagnosis = _well(diagnosis)
        undated = bool(diagnosis.findings and diagnosis.findings[0].unchanged_s)
        here = [trace.ranks[rank] for rank in self._ranks.seen if rank in trace.ranks]
        return _well(diagnosis) if undated and self._main_threads.go_on(here) else diagnosis

    def _awaits_ends(self, trace: Trace, diagnosis: Diagnosis) -> bool:
        """Whether a rank is on its way out whose status will tell more, for a while yet."""
        if diagnosis.verdict not in (*ENDED, Verdict.INCONCLUSIVE):
            return False
        known = diagnosis.verdict is Verdict.RANK_CRASHED and all(
            rank in trace.ranks and has_failed(trace.ranks[rank]) for rank in diagnosis.culprits
        )
        leaving = any(
            (f.alive and is_leaving(f) and not known) or self._ranks.is_ending(f)
            for f in trace.ranks.values()
        )
        self._leaving_since_s = (self._leaving_since_s or time.monotonic()) if leaving else 0.0
        return leaving and time.monotonic() - self._leaving_since_s < LEAVING_S

    def _tell(
        self, trace: Trace, diagnosis: Diagnosis, *, final: bool, partly: bool, stalled_s: float
    ) -> None:
        """Say what is new; ``partly``: only ranks of some nodes are seen."""
        now_s = time.monotonic()
        progress = self._ranks.counters().progress
        if (news := self._others.news() if self._others else None) and not self._judge.spoke:
            say(f"{news} (the report is in the log of node 0)", self._out)
            self._judge.hush()
            self._end_if_asked()
        elif self._judge.hear(diagnosis, progress, final=final, now_s=now_s):
            if final and partly and diagnosis.verdict is Verdict.INCONCLUSIVE:
                # Nothing here may call for an explanation: every elastic restart ends so.
                if not (self._ranks.were_stopped and stalled_s < self._config.timeout_s):
                    say(in_one_line(diagnosis, str(self._config.directory)), self._out)
                return
            trace, diagnosis = self._with_pulse(trace, diagnosis)
            if diagnosis.findings:
                self._speak(diagnosis, trace)

    def _with_stacks(self, others: Sequence[Fragment] = ()) -> Trace:
        """A look, with the stacks of ranks that can only tell them on request."""
        trace = self._run.look(others)
        if self._run.ask_for_stacks(is_gil_blocked):
            time.sleep(STACKS_S)
            trace = self._run.look(others)
        return trace

    def _sees_part(self, trace: Trace) -> bool:
        """Whether the job has ranks on other nodes that this one knows nothing of."""
        world = trace.world_size or 0
        local = self._ranks.local_world_size
        if not local and not may_span_nodes(trace, os.environ):
            local = world
        return len(trace.ranks) < world != local

    def _with_pulse(self, trace: Trace, diagnosis: Diagnosis) -> tuple[Trace, Diagnosis]:
        """Wait until it is known whether a culprit's heartbeat has stopped or was only late.

        A rank that holds the GIL tells its stack on request alone, and is only asked once its
        heartbeat has been silent for long enough.
        """
        until_s = time.monotonic() + PULSE_S
        while time.monotonic() < until_s and any(
            is_silent(trace.ranks[rank]) for rank in diagnosis.culprits if rank in trace.ranks
        ):
            time.sleep(TICK_S)
            trace = self._with_stacks(self._others.fragments() if self._others else ())
            diagnosis = diagnose(trace)
            if self._sees_part(trace):
                diagnosis = only_what_is_seen(diagnosis, trace.ranks)
        return trace, diagnosis

    def _with_other_nodes(self, trace: Trace, stalled_s: float) -> Trace:
        """Add what other nodes say, where this one holds only some of the job's ranks."""
        if self._others is None or not self._sees_part(trace):
            return trace
        rings = [(ring.rank, ring.reader.path) for ring in self._ranks.rings]
        self._others.stalled(stalled_s, trace, first=self._holds_first, asks=self._asks)
        self._others.tell(trace, rings)
        fragments = self._others.fragments()
        return self._run.look(fragments) if fragments else trace

    def _restrained(self, diagnosis: Diagnosis, trace: Trace, *, final: bool) -> Diagnosis | None:
        """Not every rank can be seen: accuse none of the others, and let node 0 speak first.

        None while the others may still turn what is to be said.
        """
        asked, self._asks = self._asks, is_for_all_to_tell(diagnosis)
        if not final and self._others is not None:
            patient = self._others.is_patient() or (self._asks and not asked)
            if patient and (not diagnosis.findings or self._asks):
                return None
        return only_what_is_seen(diagnosis, trace.ranks)

    def _speak(self, diagnosis: Diagnosis, trace: Trace) -> None:
        if not self._holds_first:
            time.sleep(YIELD_S)  # where monitors share a directory, the first node speaks
        self._judge.said(diagnosis)
        cause = cause_of(diagnosis.findings[0])
        started_ns = trace.ranks[min(trace.ranks)].started_ns if trace.ranks else 0
        if not claim(self._config.directory, self.key, cause, started_ns):
            self._end_if_asked()  # another node's monitor has said it: it ends its own ranks only
            return
        where = f"more: hangscope analyze {self._config.directory}"
        if len(self._ranks.rings) < len(trace.ranks) or self._sees_part(trace):
            where += " and the run directories of the other nodes"
        self._ranks.note_look(trace.ranks, hung=True)
        speak(diagnosis, where=where, out=self._out)
        if self._others is not None:
            self._others.publish_verdict(diagnosis.summary)
        if self._ranks.journal is not None:
            self._ranks.journal.verdict(
                diagnosis.verdict.value,
                diagnosis.culprits,
                diagnosis.summary,
                diagnosis.confidence.value,
            )
        if not self._ranks.alive:
            return
        if diagnosis.verdict not in ENDED:
            self._hung_since_ns = diagnosis.findings[0].began_ns or time.time_ns()
        self._end_if_asked()

    def _end_if_asked(self) -> None:
        """The job has been reported on: end this node's part of it where that is wanted."""
        if self._config.on_hang == "kill" and self._ranks.alive:
            say("HANGSCOPE_ON_HANG=kill: ending the job", self._out)
            if self._others is not None and self._others.is_connected:
                time.sleep(HAND_ON_S)  # the store ends with the ranks
            self._ranks.kill()


def _stalled_s(pace: Pace, counters: Counters) -> float:
    """How long nothing has moved here, or somebody has waited."""
    return max(time.monotonic() - pace.changed_s, counters.waiting_s)


def _well(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis without what was found."""
    return replace(diagnosis, verdict=Verdict.HEALTHY, findings=())
