"""Whose the exceptions and stacks of a log are, and which exception of a rank counts."""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.trace.helper_stacks import describe_helper
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import LoggedException, UnattributedException
from hangscope.trace.job_log.lines.line import Machine
from hangscope.trace.job_log.lines.workers import is_title_of_helper
from hangscope.trace.job_log.readers.stacks import threads_of
from hangscope.trace.job_log.resolving.ends import spans_nodes
from hangscope.trace.job_log.rows.gloo import is_wait_failure
from hangscope.trace.message_template import mask_numbers
from hangscope.trace.model import ClaimDetails, Frame

_SIGNED = re.compile(r"Rank (\d{1,7})(?::|, (?:node|host|device)\b)")
"""A rank that a message begins with as whoever wrote it (``Rank 11: found NaN``)."""
_OF_THE_CALLER = frozenset(
    {"ValueError", "TypeError", "AttributeError", "KeyError", "IndexError", "AssertionError"}
    | {"PicklingError", "UnpicklingError", "OSError", "EOFError", "MemoryError", "RecursionError"}
)
"""Exceptions that torch.distributed calls raise before they communicate."""
_REFUSED = re.compile(
    r"ProcessGroup\w*::\w+: |^(?:invalid|incorrect|tensors? (?:must|should|list))|"
    r"(?:must|should) (?:be|have|match)|pickle",
    re.IGNORECASE,
)
_SIGINT = 2
_MOST = 4
_NO_FAILURES = frozenset({"KeyboardInterrupt", "SystemExit", "GeneratorExit"})
_NOT_OWN = re.compile(
    r"[/\\]lib[/\\]python|site-packages|dist-packages|^<|[/\\]hangscope[/\\]recording[/\\]"
)


def in_communication(trouble: LoggedException) -> bool:
    """Whether an exception came from waiting for others; refused arguments are no wait."""
    if is_wait_failure(trouble.message):  # the backward pass has no frame of torch.distributed
        return True
    if not any(f.filename.endswith("distributed_c10d.py") for f in trouble.frames):
        return False
    return trouble.kind not in _OF_THE_CALLER and not _REFUSED.search(trouble.message)


def set_survived_apart(attempt: Attempt) -> None:
    """What a rank raised and survived ended nothing, nor do lines that only repeat it."""
    for rank, notes in list(attempt.ranks.items()):
        for trouble in [t for t in notes.exceptions if t.survived]:
            notes.printed = trouble
            attempt.raised.survived.append(UnattributedException(trouble, None, None, Machine()))
        notes.exceptions = [t for t in notes.exceptions if not t.survived]
        if rank in attempt.quoted and not notes.tells():
            del attempt.ranks[rank]
    raised, processes = attempt.raised, attempt.processes
    pending = [p for p in raised.pending if p.trouble.survived]
    raised.survived += pending
    for trouble, local, pid, machine in pending:
        known = processes.of_pid(pid, machine)
        if known is None and local is not None:
            known = processes.of_local(local, machine)
        if known in attempt.ranks:
            attempt.ranks[known].printed = trouble
    raised.pending = [p for p in raised.pending if not p.trouble.survived]
    lines = {printed.trouble.last_line for printed in raised.survived}
    attempt.stated = [said for said in attempt.stated if said.line not in lines]


def attribute_exceptions(attempt: Attempt) -> None:
    """Assign exceptions of writers known only by local rank or pid to ranks."""
    raised, several = attempt.raised, spans_nodes(attempt)
    for pending in raised.pending:
        trouble, local, pid, machine = pending
        rank = _writer(pending, attempt, several=several)
        if rank is not None:
            attempt.of(rank).exceptions.append(trouble)
        elif local is not None or machine.node is not None or pid is not None:
            raised.unranked.append(trouble)
        else:
            raised.anonymous.append(trouble)
            if trouble.thread_name != "MainThread":
                # Some rank's process lives on without it, and others may wait for it.
                text = f"thread {trouble.thread_name} ended with {trouble.type_name}: "
                text = (text + trouble.message + _where(trouble, " at {}"))[:400]
                dead = ClaimDetails(dead_thread=True)
                attempt.infer("other", text, trouble.at_ns, certain=True, details=dead)
    raised.pending.clear()


def _writer(raised: UnattributedException, attempt: Attempt, *, several: bool) -> int | None:
    """The rank of the process that raised an exception; ``several``: the log may be of several
    nodes."""
    trouble, local, pid, machine = raised
    processes, node = attempt.processes, machine.node
    rank = processes.of_pid(pid, machine)
    if rank is not None:
        return rank
    if local is not None:
        rank = processes.of_local(local, machine)
        counted = rank is not None and processes.is_counted(rank)
        if rank is None and not node and not several:
            rank = local
            attempt.of(rank).local_as_rank = not processes.is_one_node
        elif not counted:
            return rank
    elif pid is None and node is not None and not _has_shared_tasks(attempt):
        rank = node  # srun --label with one task per rank
    elif pid is None:
        found = _SIGNED.match(trouble.message)
        return int(found.group(1)) if found else None
    if rank is not None:
        attempt.of(rank).by_local_rank = True
    return rank


def _has_shared_tasks(attempt: Attempt) -> bool:
    return bool(attempt.elastic or attempt.ends.failures or attempt.shared_tasks)


def attribute_stacks(attempt: Attempt) -> None:
    """Assign stacks to ranks; the rest stays unattributed.

    Helpers and launchers are dropped: where they stand says nothing about a rank.
    """
    rest = []
    several, processes = spans_nodes(attempt), attempt.processes
    for seen in attempt.stacks:
        rank = seen.rank if seen.rank is not None else processes.of_pid(seen.pid, seen.machine)
        if rank is None and seen.local_rank is not None:
            rank = processes.of_local(seen.local_rank, seen.machine)
            rank = seen.local_rank if rank is None and not several else rank
        main = next((t.stack for t in threads_of(seen) if t.is_main), ())
        if not main or describe_helper(main) or is_title_of_helper(seen.called):
            attempt.helpers += any(frames for _, _, frames in seen.threads)
        elif rank is None:
            rest.append(seen)
        else:
            attempt.of(rank).seen = seen
    attempt.stacks[:] = rest


def resolve_chains(attempt: Attempt) -> None:
    """Choose which exception of each rank counts if one was raised while another was handled.

    A clean-up that communicates (a barrier in ``finally``) makes all ranks fail in that barrier. If
    exactly one rank's first exception did not come from communication, the first exceptions of all
    ranks count. So does the first failed wait on a rank: the job stood there, not where its
    handlers waited.
    """
    ends = {r: n.exceptions[-1] for r, n in attempt.ranks.items() if n.exceptions}
    first = {r: t.during or t for r, t in ends.items()}
    own = [r for r, t in first.items() if not in_communication(t)]
    cleaned_up = len(own) == 1 and ends[own[0]].during and in_communication(ends[own[0]])
    every = cleaned_up and len(first) > 2 and bool(first[own[0]].frames)
    for rank, trouble in first.items():
        if every or (trouble is not ends[rank] and in_communication(trouble)):
            trouble.uncaught = trouble.chained = True
            exceptions = attempt.ranks[rank].exceptions
            attempt.ranks[rank].exceptions = [trouble] if every else [*exceptions[:-1], trouble]


def claim_unattributed(attempt: Attempt) -> None:
    """Add claims for unattributed exceptions that are not failed waits; if the log says nothing
    else, for the last one of any kind.

    They accuse nobody. But if some ranks wait for others that are silent, these exceptions are the
    next thing to look at; and if a log contains nothing else, they are all it says.
    """
    raised = [*attempt.raised.anonymous, *attempt.raised.unranked]
    own = [t for t in raised if not in_communication(t) and t.kind not in _NO_FAILURES]
    if not attempt.stated and not any(notes.tells() for notes in attempt.ranks.values()):
        own = [*(printed.trouble for printed in attempt.raised.survived), *raised][-1:]
    shown = {(t.type_name, mask_numbers(t.message.partition("\n")[0])): t for t in reversed(own)}
    for trouble in [*shown.values()][: -_MOST - 1 : -1]:
        text = f"{trouble.kind}: {trouble.first_line[:300]}".rstrip(": ") + _where(trouble, " ({})")
        interrupted = trouble.kind == "KeyboardInterrupt"
        details = ClaimDetails(stopped=_SIGINT) if interrupted else ClaimDetails(unattributed=True)
        if not trouble.type_name:  # of an exception, or of a process that was looked at
            text, details = _end_of_frames(trouble), ClaimDetails(stands=True)
        if 0 < attempt.stopped_line < trouble.line:
            details = replace(details, after_stop=True)
        attempt.infer("other", text, trouble.at_ns, details=details)


def _end_of_frames(trouble: LoggedException) -> str:
    inner = _place(trouble.frames[0])
    whose = "" if trouble.of_rank is None else f" of rank {trouble.of_rank}"
    called = _where(trouble, ", called at {}").removesuffix(f", called at {inner}")
    return f"the frames of a stack or traceback{whose} end at {inner}{called}"


def _where(trouble: LoggedException, form: str) -> str:
    """The innermost frame in user code, if there is one."""
    own = [f for f in trouble.frames if not _NOT_OWN.search(f.filename)]
    at = next(iter(own or trouble.frames[: not trouble.message]), None)
    return "" if at is None else form.format(_place(at))


def _place(frame: Frame) -> str:
    file = frame.filename.replace("\\", "/").rpartition("/")[2]
    return f"{file}:{frame.line} in {frame.name}"
