"""Waits in manually created groups, whose other members are not recorded.

Such a group may span several jobs, like trainers and inference engines, or the replicas of
fault-tolerant training. Their own reports show who has not arrived there.
"""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause, Words, began
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.wording.phrases import rank_s, title_of, wait_s


def waits_for_unlisted(context: Context, place: Place) -> bool:
    """Whether the waiters at a place wait for members of which nothing is recorded."""
    groups = context.trace.groups
    return place.blind and 0 <= place.group < len(groups) and bool(groups[place.group].outsiders)


def wait_for_unlisted(context: Context, indexes: list[int]) -> Cause:
    """The cause for such places: together they are one wait for others."""
    places = context.waits.at(indexes)
    waiters = frozenset(rank for place in places for rank in place.waiters)
    others = sum(context.trace.groups[place.group].outsiders for place in places)
    title = title_of(context, places[0])
    what = title if len(places) == 1 else f"{title} and other such groups"
    words = Words(
        f"{rank_s(waiters).capitalize()} {wait_s(waiters)} in {what} for "
        f"{'a process that is' if others == 1 else 'processes that are'} no known rank of this job",
        "the group was made by hand, not by torch.distributed.new_group: it may span several jobs "
        "(replicas, trainers and inference engines), and which processes have its other places is "
        "not recorded",
        "look at the group's other processes: HangScope's report on their job, their log or their "
        "stacks show which of them has not come",
    )
    return Cause(
        Verdict.INCONCLUSIVE,
        (),
        tuple(indexes),
        Confidence.LIKELY,
        began(context, indexes),
        waiters,
        words=words,
    )
