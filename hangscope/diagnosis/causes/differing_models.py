"""Models whose parameters differ in size, as DDP finds when it is made.

Every rank compares its model with that of process 0, and raises where they differ. Process 0 has
nothing to compare with: it waits for the others, also where its model is the one unlike all others.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.processes.failures import differing_parameter
from hangscope.diagnosis.processes.stacks import innermost, user_frames, where
from hangscope.diagnosis.wording.phrases import describe, rank_s
from hangscope.diagnosis.wording.rank_advice import crash
from hangscope.trace.model import NONE

_REFERENCE = 0
_CHECKS = frozenset({"_verify_param_shape_across_processes", "_verify_params_across_processes"})
"""Functions of torch in which the models are compared."""


def weigh_models(context: Context, cause: Cause) -> Cause:
    """The cause; where ranks failed as their models differ from rank 0's, whoever is fewer.

    The numbers in the messages are members of DDP's group: they are ranks where each is its
    writer's rank.
    """
    raised = {rank: _said(context, rank) for rank in cause.culprits}
    texts = [found for found in raised.values() if found is not None]
    if texts and (skipped := _met_another_line(context, cause)) is not None:
        return skipped
    world = {*context.processes, *context.trace.missing_ranks}
    rest = tuple(sorted(world.difference(raised)))
    ranks = all(found["rank"] in (None, str(r)) for r, found in raised.items() if found is not None)
    if len(texts) != len(raised) or not ranks or _REFERENCE not in rest or len(raised) < len(rest):
        return cause
    alike = len({(found["what"], found["own"], found["value"]) for found in texts}) == 1
    if alike and rest == (_REFERENCE,) and len(raised) > 1:
        return _of_the_reference(context, cause, texts[0])
    both = cause.accusing(tuple(sorted((*raised, *rest))), Confidence.AMBIGUOUS)
    return both.with_unknown("which model is the wrong one: all compare theirs with rank 0's")


def _met_another_line(context: Context, cause: Cause) -> Cause | None:
    """The cause where the check met what process 0 issued elsewhere: no models were compared."""
    ranks = cause.culprits
    newest = [context.last_row(rank) for rank in ranks]
    if _REFERENCE in ranks or not all(_is_check(context, row) for row in newest):
        return None
    record = context.trace.records[newest[0]]
    row = context.row_of(int(record["group"]), _REFERENCE, int(record["collective_seq"]))
    if row == NONE or not context.stack(row) or _is_check(context, row):
        return None
    at = where(innermost(context.stack(row)))
    several = len(ranks) > 1
    accused = (_REFERENCE,) if several else (_REFERENCE, *ranks)
    named = cause.accusing(accused, Confidence.LIKELY if several else Confidence.AMBIGUOUS)
    words = Words(
        f"DDP's comparison of models on {rank_s(ranks)} met {describe(context.signature(row))} "
        f"that rank {_REFERENCE} issued at {at}",
        "the number of the operation decides what meets: one side has skipped a line, or run one "
        "too many, so no models were compared",
        f"compare what rank {_REFERENCE} and {rank_s(ranks)} issue before they make the DDP model: "
        "every rank must run the same lines",
    )
    return replace(named, verdict=Verdict.COLLECTIVE_MISMATCH, words=words)


def _is_check(context: Context, row: int) -> bool:
    """Whether DDP issued it to compare models."""
    return any(frame.name in _CHECKS for frame in context.stack(row))


def _of_the_reference(context: Context, cause: Cause, said: re.Match[str]) -> Cause:
    """All others agree with each other, and not with rank 0."""
    others = cause.culprits
    stack = user_frames(context.processes[_REFERENCE].stack)
    return replace(
        cause.accusing((_REFERENCE,), Confidence.LIKELY),
        verdict=Verdict.SHAPE_MISMATCH,
        places=(),
        words=Words(
            f"Rank {_REFERENCE} made another model than {rank_s(others)}: the {said['own']} of "
            f"{said['what']} are {said['value']} on all of them, not on rank {_REFERENCE}",
            f"{rank_s(others)} ended as DDP compared the models; rank {_REFERENCE}, with which all "
            "compare theirs, waits for them",
            crash(said[0], where(stack[0]) if stack else "").fix,
        ),
        evidence=tuple(f"rank {r}: {context.processes[r].end_text}" for r in others[:8]),
    ).with_unknown(f"the {said['own']} on rank {_REFERENCE}")


def _said(context: Context, rank: int) -> re.Match[str] | None:
    """What DDP has found on a rank."""
    return (
        differing_parameter(context.processes[rank].end_text) if rank in context.processes else None
    )
