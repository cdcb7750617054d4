"""All doubts. To add one: write what it looks at in one of these modules, and a row here."""

from __future__ import annotations

from hangscope.diagnosis.doubts import accused, completions, missing_evidence, moments
from hangscope.diagnosis.doubts.doubt import Cap, Doubt

_LIKELY = (
    missing_evidence.missing_dumps,
    missing_evidence.unreadable_files,
    missing_evidence.inferred_members,
    missing_evidence.unlisted_members,
    missing_evidence.inferred_wait,
    missing_evidence.counters_left,
    missing_evidence.logs_alone,
    missing_evidence.announced_in_log,
    missing_evidence.local_number,
    missing_evidence.own_report,
    moments.clocks,
    moments.silent_node,
    moments.short_wait,
    moments.fell_silent,
    moments.undated,
    moments.dumped_early,
    moments.stack_contradicts,
    moments.undated_failure,
    completions.counters_only,
    completions.end_unrecorded,
    completions.pairs_unrecorded,
    completions.last_end_unrecorded,
    accused.busy,
    accused.held_up,
    accused.equal_sides,
    accused.unseen,
    accused.nothing_listed,
    accused.rank_by_order,
    accused.unobservable,
    accused.uncreated_group,
    accused.unfinished_send,
    accused.polled_lock,
    accused.status_unseen,
    accused.reaction,
)
_AMBIGUOUS = (
    completions.one_of_several,
    moments.failed_after_waiting,
    accused.meets_elsewhere,
)
_NOBODY = (
    missing_evidence.one_rank_more,
    missing_evidence.unnamed_sender,
    missing_evidence.newest_records_lost,
    missing_evidence.excerpt,
    missing_evidence.ended_unnamed,
    moments.staggered,
    moments.went_on,
    moments.stuck_in_early_dump,
    moments.connections_broke,
    accused.stands_on_device,
    accused.first_end_cut,
)

DOUBTS = tuple(
    Doubt(applies.__name__, cap, applies)
    for cap, rows in (
        (Cap.LIKELY, _LIKELY),
        (Cap.AMBIGUOUS, _AMBIGUOUS),
        (Cap.NOBODY, _NOBODY),
    )
    for applies in rows
)
"""Each row with the most that a cause may claim where it applies."""
