"""Ranks that evidence does not reach are cleared where others remain accused."""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause, rank_list
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.records.coverage import cut_off
from hangscope.diagnosis.waiting.early_dumps import dumped_before
from hangscope.diagnosis.wording.phrases import rank_s


def acquitted(context: Context, cause: Cause) -> Cause:
    """The cause without ranks whose dumps were written too early, or are cut, to accuse them.

    Where no other rank is accused, it stays as it is, and doubts say so.
    """
    if cause.confidence is Confidence.AMBIGUOUS or cause.verdict is Verdict.DEADLOCK_CYCLE:
        return cause  # each of the accused stands for all of them
    early = dumped_before(context, cause)
    if cause.verdict is not Verdict.STUCK_COLLECTIVE and 0 < len(early) < len(cause.culprits):
        why = f"{rank_list(early)} had been dumped before the others waited for long"
        cause = cause.acquitting(early, why)
    cut = cut_off(context.trace).intersection(cause.culprits)
    if not 0 < len(cut) < len(cause.culprits):
        return cause
    why = f"what {rank_s(sorted(cut))} issued last: the file is cut or damaged before that"
    return cause.acquitting(cut, why)
