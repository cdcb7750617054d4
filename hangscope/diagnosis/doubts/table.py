"""All doubts. To add one: write what it looks at in one of these modules, and a row here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.doubts import accused, completions, missing_evidence, moments
from hangscope.diagnosis.doubts.doubt import Cap, Doubt
from hangscope.diagnosis.model import NEVER_CAME, Verdict

_MISSING = (Verdict.MISSING_RANK,)
_STUCK = (Verdict.STUCK_COLLECTIVE,)
_CRASHED = (Verdict.RANK_CRASHED,)

_Rows = Mapping[Callable[[Context, Cause], str], Collection[Verdict]]
"""What is looked at, and the verdicts that it may cast doubt on; all if empty."""

_LIKELY: _Rows = {
    missing_evidence.missing_dumps: (),
    missing_evidence.unreadable_files: (),
    missing_evidence.inferred_members: (),
    missing_evidence.unlisted_members: (),
    missing_evidence.inferred_wait: (),
    missing_evidence.counters_left: (),
    missing_evidence.logs_alone: (),
    missing_evidence.announced_in_log: (),
    missing_evidence.local_number: _CRASHED,
    missing_evidence.own_report: (),
    moments.clocks: (),
    moments.silent_node: (),
    moments.short_wait: (*NEVER_CAME, *_STUCK),
    moments.fell_silent: _STUCK,
    moments.undated: _STUCK,
    moments.dumped_early: (),
    moments.stack_contradicts: _MISSING,
    moments.undated_failure: (),
    moments.failed_unrecorded: (),
    completions.counters_only: (),
    completions.end_unrecorded: _STUCK,
    completions.sends_before: _STUCK,
    completions.pairs_unrecorded: _MISSING,
    completions.last_end_unrecorded: _MISSING,
    accused.busy: NEVER_CAME,
    accused.held_up: _MISSING,
    accused.equal_sides: NEVER_CAME,
    accused.unseen: (),
    accused.nothing_listed: _MISSING,
    accused.rank_by_order: (),
    accused.unobservable: (),
    accused.uncreated_group: _MISSING,
    accused.unfinished_send: NEVER_CAME,
    accused.polled_lock: (),
    accused.status_unseen: (Verdict.RANK_EXITED,),
    accused.reaction: _CRASHED,
}
_AMBIGUOUS: _Rows = {
    missing_evidence.counted_sender: (Verdict.DEADLOCK_CYCLE,),
    completions.one_of_several: _MISSING,
    moments.failed_after_waiting: _CRASHED,
    accused.meets_elsewhere: _MISSING,
}
_NOBODY: _Rows = {
    missing_evidence.one_rank_more: _STUCK,
    missing_evidence.unnamed_sender: (Verdict.DEADLOCK_CYCLE,),
    missing_evidence.newest_records_lost: (),
    missing_evidence.excerpt: NEVER_CAME,
    missing_evidence.ended_unnamed: _STUCK,
    moments.staggered: _MISSING,
    moments.went_on: (),
    moments.stuck_in_early_dump: _STUCK,
    moments.connections_broke: _STUCK,
    accused.stands_on_device: _MISSING,
    accused.first_end_cut: _CRASHED,
}

DOUBTS = tuple(
    Doubt(applies.__name__, cap, applies, of)
    for cap, rows in ((Cap.LIKELY, _LIKELY), (Cap.AMBIGUOUS, _AMBIGUOUS), (Cap.NOBODY, _NOBODY))
    for applies, of in rows.items()
)
"""Each row with the most that a cause may claim where it applies."""
