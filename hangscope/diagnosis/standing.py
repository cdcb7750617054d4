"""Where ranks stand, if nothing is known of them but their stacks."""

from __future__ import annotations

from hangscope.diagnosis import playbook
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.host import End, in_communication
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.sentences import rank_s
from hangscope.diagnosis.stacks import user_frames, where
from hangscope.trace.model import Frame

_FEWEST = 3
"""Two stacks at two places tell nothing: either may be the one that is waited for."""


def by_stacks(context: Context) -> Finding | None:
    """The few ranks that are elsewhere while most wait in communication; None where nobody is."""
    trace = context.trace
    ended = any(host.end is not End.UNKNOWN for host in context.hosts.values())
    if len(trace.records) or len(trace.members) or ended:
        return None
    stacks = {rank: facts.main_stack for rank, facts in trace.ranks.items() if facts.main_stack}
    if len(stacks) < _FEWEST:
        return None
    waiting = tuple(sorted(r for r, stack in stacks.items() if in_communication(stack)))
    elsewhere = tuple(sorted(set(stacks) - set(waiting)))
    if not elsewhere or len(elsewhere) * 2 >= len(stacks):
        return None
    place = _place(user_frames(stacks[elsewhere[0]]))
    advice = playbook.missing(None, place, False, False)
    alone = len(elsewhere) == 1
    return Finding(
        Verdict.MISSING_RANK,
        elsewhere,
        waiting,
        Confidence.LIKELY if alone else Confidence.AMBIGUOUS,
        f"{rank_s(elsewhere).capitalize()} {'is' if alone else 'are'} at {place} while "
        f"{rank_s(waiting)} wait at {_place(stacks[waiting[0]])}",
        "the stacks show who waits in communication, not for whom",
        advice.fix,
        advice.playbook,
        evidence=tuple(f"rank {r}: {_place(user_frames(stacks[r]))}" for r in elsewhere[:8]),
        unknowns=("what the ranks issued is not on record",),
    )


def _place(stack: tuple[Frame, ...]) -> str:
    return where(stack[0] if stack else None)
