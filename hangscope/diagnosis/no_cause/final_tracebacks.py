"""Where ranks were waiting when they timed out, inferred from their final tracebacks alone.

Over Gloo, a job without a recorder ends in one traceback per rank: a timeout, or a connection
closed because another rank timed out first. They show not what was issued but who waited in which
call, and who was stopped without a message.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Confidence, Finding, Verdict
from hangscope.diagnosis.processes.process_state import End
from hangscope.diagnosis.processes.stacks import (
    base,
    diverging_frame,
    innermost,
    user_frames,
    where,
)
from hangscope.diagnosis.records.agreement import ONE_SIDED, family
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.diagnosis.wording.playbook import say
from hangscope.diagnosis.wording.rank_advice import missing
from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame, Stack

_FEWEST = 3
"""Of two ranks at two places, either may be the awaited one."""
_C10D = ("distributed_c10d.py", "_functional_collectives.py")
_WRAPPERS = frozenset({"wrapper", "wait", "wait_tensor"})
_OWN_LINES = frozenset(
    {"broadcast", "reduce", "gather", "scatter", "barrier", "monitored_barrier", "gather_object"}
    | {"broadcast_object_list", "scatter_object_list"}
)
"""Calls that ranks often make from different lines: the root's line differs from the others', and a
barrier is at the end of either branch."""
_PAIRS = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", ""})
"""A rank in one of these waits for one rank, not for all; for a bare wait, that is unknown."""
_MAKING = frozenset({"new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group"})
"""A rank in one of these, or in a call with a group, waits for that group's members: one of the
ranks that went on may have left it out."""
_GIVING = frozenset({"broadcast", "scatter"})
"""Their roots send: a rank that waits to receive is another member."""
_STORE = "the store"
_IN_STORE = re.compile(r"wait timeout after|timeout waiting for key", re.IGNORECASE)
_KEY_OF_GROUP = re.compile(r"keys: \S*?default_pg/\d*//(\w+)//")
"""The group whose members a rank awaited in the store, as the key shows: it has a number."""
_TIMED_OUT = re.compile(r"timed out|application timeout", re.IGNORECASE)
"""The rank itself timed out; any other message means that another one went first."""
_CONNECTING = re.compile(r"timed out connecting", re.IGNORECASE)
"""Gloo had the other rank's address, so that rank had been there; it no longer was."""
_MOST_PLACES = 8
_HELPERS = 4
"""Calls of one kind may share helpers up to this depth; further out, ranks may legitimately
differ."""
_WAITED = frozenset({"timeout", "network_error"})
"""Statements made only by ranks that wait for others."""


Call = tuple[str, str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True)
class Wait:
    """``operation``: the outermost call of torch.distributed; ``alone``: some members may finish it
    without the others; ``serves``: this rank may be the one the others needed there; ``making``:
    the group it was creating. A line in a loop makes several."""

    operation: str
    frames: Stack
    alone: bool
    serves: bool = False
    making: str = ""

    shown: Frame | None = None

    @property
    def call(self) -> Call:
        """What counts as one call: the operation and, if they matter, the lines that led to it. For
        a rank that uses a helper, or a wrapper of its own, that is where the helper is called."""
        if self.operation in _OWN_LINES:
            return self.operation, self.making, ()
        own = self.frames[:_HELPERS]
        return self.operation, self.making, tuple((base(f.filename), f.line) for f in own)

    def __str__(self) -> str:
        shown = self.shown or (self.frames[0] if self.frames else None)
        group = f" for group {self.making}" if self.making else ""
        return f"{self.operation or 'a wait'}{group} ({where(shown)})"


def from_final_tracebacks(context: Context) -> Finding | None:
    """The few ranks that waited elsewhere, or did not wait, while most waited in one call."""
    if not context.trace.only_logs or len(context.trace.records):
        return None
    waits = _waits(context)
    everybody = sorted({*context.trace.ranks, *context.trace.missing_ranks})
    if len(waits) < _FEWEST:
        return _of_a_few(context, waits, everybody)
    calls = _by_call(waits)
    usual, most = max(calls.items(), key=lambda item: len(item[1]))
    silent = _silent(context, waits, everybody)
    if silent and (_sizes_clashed(context) or _could_not_connect(context)):
        # A rank that receives more than it asked for is aborted, right or wrong; and a refused
        # connection is to a rank that had been there.
        return None
    if len(most) * 2 <= len(everybody) or not all(_was_stopped(context, r) for r in silent):
        return None
    odd = tuple(sorted(r for call, ranks in calls.items() if call != usual for r in ranks))
    # A rank in a send or receive may wait for one of the many, and a rank that went on from an
    # operation some may finish alone need not be wrong.
    if any(waits[r].operation in _PAIRS for r in (most[0], *odd)):
        return None
    # If all but one rank, including the root, wait for such a call to end, only that rank can be
    # late, unless one of the others alone may hold up what it waits in.
    all_but_one = len(odd) == 1 and len(most) == len(everybody) - 1 and not waits[odd[0]].alone
    if odd and waits[most[0]].alone and not all_but_one:
        return None
    # A root that waits alone may be waiting for the one of the many that left its part out, while
    # all others have theirs.
    if any(waits[r].serves for r in odd) and not waits[most[0]].alone:
        return None
    if any(waits[r].operation in _MAKING for r in odd) or _in_another_group(context, odd, most):
        return None
    left = _left_well(context, silent)
    suspects = left or tuple(sorted({*odd, *silent}))
    if not suspects or len(suspects) * 2 >= len(everybody):
        return None
    waits = _shown_apart(waits, odd, most)
    return _finding(context, suspects, odd, tuple(sorted(most)), waits, left=bool(left))


def _in_another_group(context: Context, odd: Iterable[int], most: list[int]) -> bool:
    """Whether one of the few waits in a call with a group, unless all of the many wait in one of
    the same name: a rank is in one group of a name, so theirs is its own."""
    given = {c.reporter: c for c in context.trace.claims if c.details.in_group}
    names = {r: str(claim.details.group_name) for r, claim in given.items()}
    shared = {names.get(r, "") for r in most}
    return any(r in names and (not names[r] or shared != {names[r]}) for r in odd)


def _by_call(waits: dict[int, Wait]) -> dict[Call, list[int]]:
    """Who waited in which call. A truncated traceback matches those it is the tail of."""
    calls: dict[Call, list[int]] = defaultdict(list)
    for rank, wait in sorted(waits.items(), key=lambda item: (-len(item[1].frames), item[0])):
        operation, making, lines = call = wait.call
        whole = [c for c in calls if c[:2] == (operation, making) and c[2][: len(lines)] == lines]
        calls[max(whole, key=lambda c: len(calls[c]), default=call)].append(rank)
    return calls


def _shown_apart(waits: dict[int, Wait], odd: tuple[int, ...], most: list[int]) -> dict[int, Wait]:
    """The waits; if all are in one helper, with the frames that show how each got there."""
    first, rest = waits[most[0]], [waits[r] for r in odd]
    inner = [w.frames[:1] for w in (first, *rest)]
    if not rest or not all(a and a == inner[0] for a in inner):
        return waits
    result = dict(waits)
    for wait, others, ranks in [
        (first, rest, most),
        *((w, [first], [r]) for w, r in zip(rest, odd, strict=True)),
    ]:
        at = diverging_frame(wait.frames, [w.frames for w in others])
        if at is not None:
            result |= {r: replace(waits[r], shown=wait.frames[at]) for r in ranks}
    return result


def _of_a_few(context: Context, waits: dict[int, Wait], everybody: list[int]) -> Finding | None:
    """Of two or three ranks, all but one timed out in one call, and that one was stopped silently.

    Had it waited too, it would have left a traceback of its own when the others' connections
    closed. If the launcher reports ends for the others but none for it, it had exited cleanly.
    """
    silent = _silent(context, waits, everybody)
    if _sizes_clashed(context) or _could_not_connect(context):
        return None
    if not waits or len(silent) != 1 or len(_by_call(waits)) != 1:
        return None
    if any(w.alone or w.operation in (*_PAIRS, _STORE) for w in waits.values()):
        return None
    errors = [context.trace.ranks[r].exception for r in waits]
    gave_up = [e is not None and _TIMED_OUT.search(e.message) for e in errors]
    # Connections to an ended rank close: nobody has to wait until its own timeout.
    if not any(gave_up) and _left_well(context, silent) and _all_listed(context, waits):
        return _finding(context, tuple(silent), (), tuple(sorted(waits)), waits, left=True)
    stopped = context.processes.get(silent[0])
    if stopped is None or stopped.end is not End.TORN_DOWN:
        return None
    if not all(gave_up):
        return None
    return _finding(context, tuple(silent), (), tuple(sorted(waits)), waits, left=False)


def places_of_waits(context: Context) -> tuple[str, ...]:
    """For a report that names nobody: which rank timed out where."""
    at: dict[str, list[int]] = defaultdict(list)
    for rank, wait in sorted(_waits(context).items()):
        at[str(wait)].append(rank)
    return tuple(f"{rank_s(ranks)} waited in {place}" for place, ranks in at.items())[:_MOST_PLACES]


def _waits(context: Context) -> dict[int, Wait]:
    """Per rank the call in which it timed out or lost its peers."""
    return {
        rank: _wait(facts.exception)
        for rank, facts in context.trace.ranks.items()
        if facts.exception is not None
        and facts.exception.is_main_thread
        and facts.exception.stack
        and context.processes[rank].secondary
    }


def _silent(context: Context, waits: dict[int, Wait], everybody: list[int]) -> list[int]:
    """Ranks without a message. A rank whose thread timed out, or whose message was interleaved with
    another's, has waited as well; it is just not known where."""
    heard = {c.reporter for c in context.trace.claims if c.kind in _WAITED}
    return [r for r in everybody if r not in waits and r not in heard]


def _sizes_clashed(context: Context) -> bool:
    return any(c.kind == "size_mismatch" for c in context.trace.claims)


def _could_not_connect(context: Context) -> bool:
    """Whether another rank refused a connection instead of being waited for."""
    errors = (facts.exception for facts in context.trace.ranks.values())
    return any(e is not None and _CONNECTING.search(e.message) for e in errors)


def _wait(error: ExceptionFacts) -> Wait:
    names = [f.name for f in error.stack]
    calls = [f.name for f in error.stack if base(f.filename) in _C10D and f.name not in _WRAPPERS]
    alone = bool(calls) and family(calls[0]) in ONE_SIDED
    operation = calls[-1] if calls else ""
    if not calls and _IN_STORE.search(error.message):
        operation = _STORE
    elif not calls and "backward" in names:
        operation = "backward"
    elif not calls and "_pre_forward" in names:
        operation = "forward"
    elif not calls and any(base(f.filename) == "_ops.py" for f in error.stack):
        operation = _through_torch_ops(error.stack)
    received = "for recv operation" in error.message
    serves = alone and not (family(calls[0]) in _GIVING and received)
    key = _KEY_OF_GROUP.search(error.message) if operation in _MAKING else None
    making = key.group(1) if key else ""
    return Wait(operation, user_frames(error.stack), alone, serves, making)


def _through_torch_ops(stack: Stack) -> str:
    """The operation issued without a call of ``torch.distributed``."""
    for frame in reversed(stack):
        if "/distributed/tensor/" in frame.filename.replace("\\", "/"):
            named = base(frame.filename) == "_api.py" and not frame.name.startswith("_")
            return frame.name if named else "an operation of DTensor"
    return "a compiled operation"


def _was_stopped(context: Context, rank: int) -> bool:
    """Whether a rank without a message was alive until the launcher ended it, as far as known."""
    process = context.processes.get(rank)
    return process is None or process.end in (End.TORN_DOWN, End.UNKNOWN)


def _left_well(context: Context, silent: list[int]) -> tuple[int, ...]:
    """The one rank for which the launcher reports no end although it does for all others.

    A launcher lists ranks that failed and ranks it stopped: one in neither list exited with status
    0.
    """
    reported = {r for r, facts in context.trace.ranks.items() if _listed(facts.exit)}
    rest = {*context.trace.ranks, *context.trace.missing_ranks} - reported
    return tuple(rest) if len(rest) == 1 and rest <= set(silent) else ()


def _all_listed(context: Context, ranks: Iterable[int]) -> bool:
    return all(_listed(context.trace.ranks[rank].exit) for rank in ranks)


def _listed(exit_: ExitFacts | None) -> bool:
    """Whether a launcher reported how a rank ended."""
    return exit_ is not None and (exit_.code is not None or exit_.signal is not None)


def _fell_silent(context: Context, suspects: tuple[int, ...], most: tuple[int, ...]) -> bool:
    """Whether the ranks without a message were gone: nobody had timed out when connections closed,
    and no source says that they were stopped."""
    errors = [context.trace.ranks[r].exception for r in most]
    gave_up = any(e is not None and _TIMED_OUT.search(e.message) for e in errors)
    ends = {r: context.processes[r].end for r in suspects if r in context.processes}
    return not gave_up and all(end is End.UNKNOWN for end in ends.values())


def _they(ranks: tuple[int, ...]) -> str:
    return "they" if len(ranks) > 1 else "it"


def _finding(
    context: Context,
    suspects: tuple[int, ...],
    odd: tuple[int, ...],
    most: tuple[int, ...],
    waits: dict[int, Wait],
    *,
    left: bool,
) -> Finding:
    there, them = waits[most[0]], rank_s(most)
    who = rank_s(suspects).capitalize()
    many = len(suspects) > 1
    advice = missing()
    if left:
        verdict, advice = Verdict.RANK_EXITED, say(Verdict.RANK_EXITED)
        summary = f"{who} had ended with status 0 when {them} gave up waiting in {there}"
    elif odd:
        verdict, advice = Verdict.COLLECTIVE_MISMATCH, say("op")
        lines = [where(waits[r].shown or innermost(waits[r].frames)) for r in (odd[0], most[0])]
        if all(lines) and lines[0] != lines[1]:
            advice = replace(advice, fix=f"compare {lines[0]} with {lines[1]}; {advice.fix}")
        elsewhere = [f"rank {r} in {waits[r]}" for r in odd[:4]]
        silent = tuple(r for r in suspects if r not in odd)
        if silent:
            elsewhere.append(f"{rank_s(silent)} had said nothing when the job was stopped")
        summary = f"{them.capitalize()} waited in {there}, {', '.join(elsewhere)}"
    elif _fell_silent(context, suspects, most):
        verdict, advice = Verdict.RANK_LOST, say(Verdict.RANK_LOST)
        summary = (
            f"{who} left no trace; the connections of {them} closed while {_they(most)} waited in "
            f"{there}"
        )
    else:
        verdict = Verdict.MISSING_RANK
        summary = (
            f"{who} {'were' if many else 'was'} alive and not waiting when {them} gave up "
            f"waiting in {there}"
        )
    return Finding(
        verdict,
        suspects,
        tuple(sorted({*context.trace.ranks} - set(suspects))),
        Confidence.AMBIGUOUS if many else Confidence.LIKELY,
        summary,
        "only tracebacks tell: who waited in which call, and who was stopped without one",
        advice.fix,
        advice.playbook,
        op=there.operation or None,
        evidence=places_of_waits(context),
        unknowns=("what the ranks issued is not on record: HANGSCOPE=1 would record it",),
    )
