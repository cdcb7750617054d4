"""Where ranks were waiting when they timed out, inferred from their final tracebacks alone.

Over Gloo, a job without a recorder ends in one traceback per rank: a timeout, or a connection
closed because another rank timed out first. They show not what was issued but who waited in which
call, and who was stopped without a message.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.observability import is_text_alone
from hangscope.diagnosis.processes.failures import lost_a_peer
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.processes.stacks import base, diverging_frame, user_frames, where
from hangscope.diagnosis.records.agreement import ONE_SIDED, family
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.diagnosis.wording.playbook import say
from hangscope.diagnosis.wording.rank_advice import missing
from hangscope.trace.model import ExceptionFacts, ExitFacts, Stack

_C10D = ("distributed_c10d.py", "_functional_collectives.py")
_WRAPPERS = frozenset({"wrapper", "wait", "wait_tensor"})
_PASSES = {"backward": "backward", "_pre_forward": "forward"}
"""Functions of torch that issue collectives of their own."""
_OWN_LINES = frozenset(
    {"broadcast_object_list", "scatter_object_list", "gather_object", "barrier"}
    | {"monitored_barrier", *ONE_SIDED}
)
"""Calls that ranks often make from different lines: the root's line differs from the others', and a
barrier is at the end of either branch."""
_OF_SOME = frozenset({"isend", "irecv", "batch_isend_irecv", "", *ONE_SIDED}) | frozenset(
    {"new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group"}
)
"""Who waits in one of these need not wait for all: for a partner, for a root, or for members of a
group that ranks which went on may have left out. Of a bare wait that is unknown."""
_GIVING = frozenset({"broadcast", "scatter"})
"""Their roots send: a rank that waits to receive is another member."""
_IN_STORE = re.compile(r"wait timeout after|timeout waiting for key", re.IGNORECASE)
_CONNECTING = re.compile(r"timed out connecting", re.IGNORECASE)
"""Gloo had the other rank's address, so that rank had been there; it no longer was."""
_MOST_PLACES = 8
_HELPERS = 4
"""Calls of one kind may share helpers up to this depth; further out, ranks may legitimately
differ."""
_WAITED = frozenset({"timeout", "network_error"})
"""Statements made only by ranks that wait for others."""

_Call = tuple[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True)
class _Wait:
    """``operation``: the outermost call of torch.distributed; ``frames``: the user's, innermost
    first; ``receives``: it waits for the root's part, so it is a member like others."""

    operation: str
    frames: Stack
    receives: bool = False

    @property
    def call(self) -> _Call:
        """What counts as one call: the operation and, if they matter, the lines that led to it."""
        if self.operation in _OWN_LINES:
            return self.operation, ()
        return self.operation, tuple((base(f.filename), f.line) for f in self.frames[:_HELPERS])

    def beside(self, other: _Wait) -> str:
        """The line that shows how it came to another call than ``other``."""
        at = None
        if self.frames[:1] == other.frames[:1]:
            at = diverging_frame(self.frames, [other.frames])
        return where(self.frames[at or 0]) if self.frames else ""


def from_final_tracebacks(context: Context) -> Finding | None:
    """The few ranks that waited elsewhere, or did not wait, while most waited in one call that
    needs all of them."""
    if not is_text_alone(context.trace) or len(context.trace.records):
        return None
    waits = _waits(context)
    calls = _by_call(waits)
    most = sorted(calls[max(calls, key=lambda call: len(calls[call]))]) if calls else []
    odd = sorted(waits.keys() - most)
    members = [waits[r] for r in (*most[:1], *(r for r in odd if not waits[r].receives))]
    if not most or any(wait.operation in _OF_SOME for wait in members):
        return None
    groups = {c.reporter for c in context.trace.claims if c.details.in_group}
    silent = _silent(context, waits)
    if not groups.isdisjoint(odd) or (silent and _may_have_come(context, silent)):
        return None
    left = _left_well(context, silent)
    if odd and not left and _all_lost_a_peer(context, waits):
        return None
    suspects = tuple(left or sorted({*odd, *silent}))
    alone = len(suspects) == 1 and not odd
    if not suspects or (len(suspects) >= len(most) and not alone):
        return None
    return _finding(context, suspects, odd, most, waits, left=bool(left))


def _may_have_come(context: Context, silent: Collection[int]) -> bool:
    """Whether ranks without a message may have been where the others were.

    One that receives more than it asked for is aborted, right or wrong; a refused connection is to
    a rank that had been there; and one that ended by itself did not just wait.
    """
    errors = [facts.exception for facts in context.trace.ranks.values()]
    refused = any(e is not None and _CONNECTING.search(e.message) for e in errors)
    clashed = any(c.kind == "size_mismatch" for c in context.trace.claims)
    ends = {context.processes[r].end for r in silent if r in context.processes}
    return refused or clashed or not ends <= {End.TORN_DOWN, End.UNKNOWN}


def _all_lost_a_peer(context: Context, waits: Collection[int]) -> bool:
    """Whether none of them had waited in vain: a process that says nothing ended before them, and
    where it left them need not be where anybody waited for anybody."""
    errors = [context.trace.ranks[rank].exception for rank in waits]
    return all(error is not None and lost_a_peer(error) for error in errors)


def _by_call(waits: dict[int, _Wait]) -> dict[_Call, list[int]]:
    """Who waited in which call. A truncated traceback matches those it is the tail of."""
    calls: dict[_Call, list[int]] = defaultdict(list)
    for rank, wait in sorted(waits.items(), key=lambda item: (-len(item[1].frames), item[0])):
        operation, lines = call = wait.call
        whole = [c for c in calls if c[0] == operation and c[1][: len(lines)] == lines]
        calls[max(whole, key=lambda c: len(calls[c]), default=call)].append(rank)
    return calls


def places_of_waits(context: Context) -> tuple[str, ...]:
    """For a report that names nobody: which rank timed out where."""
    at: dict[str, list[int]] = defaultdict(list)
    for rank, wait in sorted(_waits(context).items()):
        at[f"{wait.operation or 'a wait'} ({wait.beside(wait)})"].append(rank)
    return tuple(f"{rank_s(ranks)} waited in {place}" for place, ranks in at.items())[:_MOST_PLACES]


def _waits(context: Context) -> dict[int, _Wait]:
    """Per rank the call in which it timed out or lost its peers."""
    return {
        rank: _wait(facts.exception)
        for rank, facts in context.trace.ranks.items()
        if facts.exception is not None
        and facts.exception.is_main_thread
        and facts.exception.stack
        and context.processes[rank].secondary
    }


def _silent(context: Context, waits: Collection[int]) -> list[int]:
    """Ranks without a message. A rank whose thread timed out, or whose message was interleaved with
    another's, has waited as well; it is just not known where."""
    heard = {c.reporter for c in context.trace.claims if c.kind in _WAITED}
    everybody = {*context.trace.ranks, *context.trace.missing_ranks}
    return sorted(everybody.difference(waits, heard))


def _wait(error: ExceptionFacts) -> _Wait:
    calls = [f.name for f in error.stack if base(f.filename) in _C10D and f.name not in _WRAPPERS]
    passes = [_PASSES[f.name] for f in error.stack if f.name in _PASSES]
    operation = ""
    if calls:
        operation = family(calls[0]) if family(calls[0]) in ONE_SIDED else calls[-1]
    elif _IN_STORE.search(error.message):
        operation = "the store"
    elif passes:
        operation = passes[0]
    elif any(base(f.filename) == "_ops.py" for f in error.stack):
        operation = "an operation of torch"
    receives = operation in _GIVING and "for recv operation" in error.message
    return _Wait(operation, user_frames(error.stack), receives)


def _left_well(context: Context, silent: Collection[int]) -> tuple[int, ...]:
    """The one rank for which the launcher reports no end although it does for all others.

    A launcher lists ranks that failed and ranks it stopped: one in neither list exited with status
    0.
    """
    reported = {r for r, facts in context.trace.ranks.items() if _listed(facts.exit)}
    rest = {*context.trace.ranks, *context.trace.missing_ranks} - reported
    return tuple(rest) if len(rest) == 1 and rest <= set(silent) else ()


def _listed(exit_: ExitFacts | None) -> bool:
    """Whether a launcher reported how a rank ended."""
    return exit_ is not None and (exit_.code is not None or exit_.signal is not None)


def _finding(
    context: Context,
    suspects: tuple[int, ...],
    odd: list[int],
    most: list[int],
    waits: dict[int, _Wait],
    *,
    left: bool,
) -> Finding:
    there, them = waits[most[0]], rank_s(most)
    who = rank_s(suspects).capitalize()
    line = there.beside(waits[odd[0]] if odd and not left else there)
    place = f"{there.operation} ({line})"
    ends = {context.processes[r].end for r in suspects if r in context.processes}
    advice = missing()
    if left:
        verdict, advice = Verdict.RANK_EXITED, say(Verdict.RANK_EXITED)
        summary = f"{who} had ended with status 0 when {them} gave up waiting in {place}"
    elif odd:
        verdict, advice = Verdict.COLLECTIVE_MISMATCH, say("op")
        lines = {rank: waits[rank].beside(there) for rank in odd}
        first = lines[odd[0]]
        if first and line and first != line:
            advice = replace(advice, fix=f"compare {first} with {line}; {advice.fix}")
        elsewhere = [f"rank {r} in {waits[r].operation} ({lines[r]})" for r in odd[:4]]
        silent = tuple(r for r in suspects if r not in odd)
        if silent:
            elsewhere.append(f"{rank_s(silent)} had said nothing when the job was stopped")
        summary = f"{them.capitalize()} waited in {place}, {', '.join(elsewhere)}"
    elif ends == {End.TORN_DOWN}:
        verdict = Verdict.MISSING_RANK
        summary = f"{who} did not wait when {them} gave up waiting in {place}, and was stopped"
    else:
        verdict, advice = Verdict.RANK_LOST, say(Verdict.RANK_LOST)
        summary = f"{who} left no trace; {them} gave up, or lost their connections, in {place}"
    return Finding(
        verdict,
        suspects,
        tuple(sorted({*context.trace.ranks} - set(suspects))),
        Confidence.AMBIGUOUS if len(suspects) > 1 else Confidence.LIKELY,
        summary,
        "only tracebacks tell: who waited in which call, and who was stopped without one",
        advice.fix,
        advice.playbook,
        op=there.operation or None,
        evidence=places_of_waits(context),
        unknowns=("what the ranks issued is not on record: HANGSCOPE=1 would record it",),
    )
