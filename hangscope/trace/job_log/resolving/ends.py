"""Finds the ranks whose ends launchers and schedulers report by local rank, pid or task."""

from __future__ import annotations

from dataclasses import replace

from hangscope.trace import signals
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import LauncherFailure, RankNotes
from hangscope.trace.job_log.evidence.processes import Process
from hangscope.trace.job_log.lines.line import Machine
from hangscope.trace.message_template import mask_numbers
from hangscope.trace.model import ClaimDetails

_ABORTED = signals.codes_of(signals.SIGABRT)
"""Exit statuses of a process that aborted itself, as a watchdog does after a timeout."""
_ON_ONE_NODE = 8
"""Ranks from this one on may be on another node, however few processes a log mentions."""
_GRACE_NS = 20 * 10**9
"""Launchers wait at least this long for processes to stop before they kill them."""
_OF_SIGNALS = 128
"""Exit statuses from here on are shells' for signals."""
_OWN_REASONS = ("oom", "device_error")
_REASONS = (*_OWN_REASONS, "network_error", "rendezvous", "timeout", "size_mismatch")
_STOPPING = (signals.SIGTERM, signals.SIGKILL)


def spans_nodes(attempt: Attempt) -> bool:
    """Whether a local rank in this log may differ from the rank."""
    locals_seen = {n.local_rank for n in attempt.ranks.values() if n.local_rank is not None}
    hosts = {n.host for n in attempt.ranks.values() if n.host}
    largest = max(attempt.ranks, default=0)
    processes, ends = attempt.processes, attempt.ends
    if len(hosts) > 1 or (bool(locals_seen) and largest > max(locals_seen)):
        return True
    if processes.nodes > 1 or len(processes.machines) > 1:
        return True
    # Each node has one agent; the logs of several may be concatenated or interleaved.
    if len({agent.pid for agent in ends.agents}) > 1 or ends.agents_go_back:
        return True
    # In a hang nearly every rank on a launcher's node prints something. If most ranks up to the
    # largest are silent, or there are more ranks than a node has, it is another node's launcher.
    ended = {Process(f.pid, f.machine) for f in ends.failures if f.pid is not None} | ends.stopped
    if largest >= max(_ON_ONE_NODE, len(ended)):
        return True
    heard = set(attempt.ranks) | {f.local_rank for f in ends.failures}
    return bool(attempt.ranks) and len(heard) * 2 <= largest + 1


def resolve_ends(attempt: Attempt) -> None:
    """Record for each rank how its process ended, and whether its launcher ended it."""
    _failures(attempt)
    _task_ends(attempt)
    _deaths(attempt)
    for process in attempt.ends.out_of_memory:
        rank = attempt.processes.of_pid(*process)
        if rank is not None:
            attempt.of(rank).oom_killed = True
    _stopped(attempt)
    _killed_by_launcher([n for n in attempt.ranks.values() if n.has_ended])
    # Whoever crashed printed the only stack that is nobody's.
    crashed = [n for n in attempt.ranks.values() if n.exit_signal in signals.FAULTS]
    if len(crashed) == 1 and len(attempt.stacks) == 1 and crashed[0].seen is None:
        crashed[0].seen = attempt.stacks.pop()
    _explain_by_what_nobody_signed(attempt)


def _failures(attempt: Attempt) -> None:
    """Processes that a launcher reports as failed."""
    several, processes = spans_nodes(attempt), attempt.processes
    for failure in attempt.ends.failures:
        rank, guessed = _rank_of(failure, attempt, several)
        gave_up = rank in attempt.ranks and bool(attempt.ranks[rank].operations)
        if guessed and gave_up and failure.exit_code not in _ABORTED:
            rank = None  # it lived long enough to time out: the failure is on another node
        if _is_aftermath(failure, rank, attempt):
            continue
        if rank is None:
            attempt.ends.unattributed += 1
            _claim_unattributed(failure, attempt)
            continue
        notes = attempt.of(rank)
        if not notes.has_ended:
            notes.ended(failure.exit_code, failure.at_ns)
            for printed in [
                p for p in attempt.raised.survived if p.local_rank == failure.local_rank
            ]:
                if notes.printed is None and printed.machine.may_be(failure.machine):
                    notes.printed = printed.trouble
                    attempt.raised.survived.remove(printed)
            counted = processes.is_counted(rank)
            notes.by_local_rank |= guessed or counted
            notes.local_as_rank |= guessed and not (several or counted or processes.is_one_node)


def _rank_of(failure: LauncherFailure, attempt: Attempt, several: bool) -> tuple[int | None, bool]:
    """The rank of a failed process, and whether it was inferred from the local rank alone.

    ``several``: the log may be of several nodes, which have the same local ranks.
    """
    processes, local, machine = attempt.processes, failure.local_rank, failure.machine
    told = processes.of_pid(failure.pid, machine)
    told = processes.stated(local, machine) if told is None else told
    if told is not None:
        return told, False
    first = [] if machine.is_unknown else processes.first_ranks(machine)
    if len(first) == 1:
        return first[0] + local, first[0] + local not in attempt.ranks
    by_local_rank = processes.of_local(local, machine)
    if not several and by_local_rank is not None:
        return by_local_rank, False
    rank = _on_one_of_the_nodes(failure, attempt) if several else None
    if rank is not None:
        return rank, rank != by_local_rank
    if failure.exit_code == 1 and len(attempt.ends.failures) == 1:  # Python's own status
        raised = [r for r, n in attempt.ranks.items() if any(t.uncaught for t in n.exceptions)]
        if len(raised) == 1:
            return raised[0], False
    return (None if several else local), True


def _on_one_of_the_nodes(failure: LauncherFailure, attempt: Attempt) -> int | None:
    """Among the ranks of several nodes with a local rank, the one that did not give up waiting."""
    local = failure.local_rank
    known = [n for n in attempt.ranks.values() if n.local_rank is not None]
    per_node = max((n.local_rank or 0 for n in known), default=-1) + 1
    if any(n.rank % per_node != n.local_rank for n in known):
        return attempt.processes.of_local(local, failure.machine)
    # As many on each node, in their order.
    first = attempt.processes.first_ranks(failure.machine) if local < per_node else []
    alike = [rank + local for rank in first]
    if len(alike) < 2:
        return alike[0] if alike else None
    quiet = [r for r in alike if r not in attempt.ranks or not attempt.ranks[r].operations]
    return quiet[0] if len(quiet) == 1 and failure.exit_code not in _ABORTED else None


def _is_aftermath(failure: LauncherFailure, rank: int | None, attempt: Attempt) -> bool:
    """Whether a process left with a plain status, for no reason that is told, only after others had
    given up waiting.

    A launcher ends all processes of its node as soon as one has left. So nobody there had left
    before those timeouts, and whoever left later did so because of them.
    """
    if not 0 < failure.exit_code < _OF_SIGNALS or not failure.line:
        return False
    if rank is not None and rank in attempt.ranks and attempt.ranks[rank].exceptions:
        return False
    first = min(attempt.overdue, key=lambda o: o.line, default=None)
    if first is None or not 0 < first.line < failure.line:
        return False
    if any(trouble.line < first.line for trouble in attempt.raised.anonymous):
        return False  # it may have raised that, and left late
    return not (first.at_ns and failure.at_ns) or first.at_ns <= failure.at_ns


def _claim_unattributed(failure: LauncherFailure, attempt: Attempt) -> None:
    """A process of unknown rank ended. If it is none of the ranks in the log, that tells more than
    anything they say: it is on another machine, failed before they gave up, or shares its local
    rank with another failure.
    """
    code, machine, raised = failure.exit_code, failure.machine, attempt.raised
    heard = [n for n in attempt.ranks.values() if n.tells()]
    alike = [f for f in attempt.ends.failures if f.local_rank == failure.local_rank]
    unheard = len({(f.pid, f.machine, f.exit_code) for f in alike}) > 1
    if heard and not unheard:
        elsewhere = all(n.host is not None and not Machine(n.host).may_be(machine) for n in heard)
        gave_up_ns = min((o.at_ns for n in heard for o in n.overdue), default=0)
        unheard = elsewhere or 0 < failure.at_ns < gave_up_ns
    unheard &= code not in _ABORTED
    if not unheard and (heard or raised.anonymous or raised.unranked):
        return
    where = f" on {machine.host}" if machine.host else ""
    how = f"killed by {signals.name_of(-code)}" if code < 0 else f"exit status {code}"
    text = f"a process with local rank {failure.local_rank}{where} ended: {how}"
    details = ClaimDetails(unheard=unheard)
    attempt.infer("launcher_failure", text, failure.at_ns, details=details)


def _task_ends(attempt: Attempt) -> None:
    """Ends of tasks, as reported by a scheduler."""
    tasks_are_ranks, ends = _tasks_are_ranks(attempt), attempt.ends
    for end in ends.of_tasks:
        if not tasks_are_ranks:
            text = f"task {end.task} on {end.host} ended (of several processes, here)"
            attempt.infer("launcher_failure", text, end.at_ns)
            continue
        notes = attempt.of(end.task)
        notes.host = notes.host or end.host
        notes.exit_code = notes.exit_code if notes.exit_code is not None else end.exit_code
        notes.exit_signal = notes.exit_signal if notes.exit_signal is not None else end.signal
        notes.oom_killed |= end.oom
        notes.by_launcher |= end.task in ends.stopped_tasks
        notes.exit_ns = notes.exit_ns or end.at_ns


def _tasks_are_ranks(attempt: Attempt) -> bool:
    """False if torchrun runs under srun: then a task is a node."""
    if attempt.ends.failures or attempt.ends.stopped or attempt.elastic:
        return False
    highest = max(attempt.ranks, default=-1)
    ended = {t.task for t in attempt.ends.of_tasks}
    if highest <= max(ended, default=-1) or (attempt.world_size or 0) > max(ended, default=-1):
        return True
    # A task with several ranks would take them all down; here exactly the ended ones are silent.
    silent = set(range(highest + 1)) - set(attempt.ranks)
    return bool(silent) and silent == ended


def _deaths(attempt: Attempt) -> None:
    """Workers that a scheduler found dead; one whose watchdog gave up aborted itself."""
    for process, at_ns in attempt.ends.found_dead.items():
        rank = attempt.processes.of_pid(*process)
        if rank is None:
            attempt.ends.unattributed += 1
            text = f"Ray: the worker of process {process.pid} died"
            attempt.infer("launcher_failure", text, at_ns)
            continue
        notes = attempt.of(rank)
        if not (notes.has_ended or notes.operations):
            notes.found_dead, notes.exit_ns = True, at_ns
            notes.exit_text = "its process died, says Ray, and not how"


def _stopped(attempt: Attempt) -> None:
    """Ranks that the launcher told to stop are victims."""
    ranks = [attempt.processes.of_pid(*process) for process in attempt.ends.stopped]
    for rank in ranks:
        if rank is not None:
            attempt.of(rank).by_launcher = True
    unknown = ranks.count(None)
    if unknown and attempt.world_size is not None:
        others = {r for r, n in attempt.ranks.items() if n.has_ended or n.by_launcher}
        rest = set(range(attempt.world_size)) - others
        for rank in rest if len(rest) == unknown else ():
            attempt.of(rank).by_launcher = True


def _killed_by_launcher(ended: list[RankNotes]) -> None:
    """A SIGKILL long after other failures is the launcher's, for ranks that would not stop.

    Without times: if one process failed by itself and all others were killed, they were killed
    because of it (as Hydra does).
    """
    killed = [n for n in ended if n.exit_signal == signals.SIGKILL and not n.oom_killed]
    own = [n for n in ended if n.exit_signal not in _STOPPING]
    timed = [n.exit_ns for n in own if n.exit_ns]
    beside = [n for n in own if n.exit_signal != signals.SIGABRT]
    one = not timed and len(killed) > 1 and len(beside) == 1 and len(killed) + 1 == len(ended)
    for notes in killed:
        late = bool(timed) and bool(notes.exit_ns) and notes.exit_ns - min(timed) >= _GRACE_NS
        notes.by_launcher |= one or late


def _explain_by_what_nobody_signed(attempt: Attempt) -> None:
    """Attribute one reason of unknown writers that was printed as often as processes ended."""
    ended = [n for n in attempt.ranks.values() if n.exit_code and n.exit_signal is None]
    if not ended or attempt.ends.unattributed or any(n.operations or n.exceptions for n in ended):
        return  # the reason of one is known, such as that it gave up waiting
    raised = attempt.raised.anonymous
    reasons = {(t.type_name, mask_numbers(t.message.partition("\n")[0])) for t in raised}
    if len(reasons) == 1 and len(raised) >= len(ended):
        for notes in _all_of_them(attempt) or ended:
            notes.exceptions.append(replace(raised[0], uncaught=True))
        raised.clear()
    elif not reasons and len(ended) == 1 and not ended[0].exit_text:
        said = [s.claim for s in attempt.stated]
        said = [c for c in said if c.kind in _REASONS and c.reporter is None]
        own = [c for c in said if c.kind in _OWN_REASONS]
        for claim in (own or said)[:1]:
            ended[0].exit_text, ended[0].echo = claim.text[:300], claim not in own


def _all_of_them(attempt: Attempt) -> list[RankNotes]:
    """Every rank, if there are as many anonymous exceptions as ranks: then each raised one.

    A rank that the launcher stopped when it saw the first of them end was already exiting.
    """
    every, count = [*attempt.ranks.values()], len(attempt.raised.anonymous)
    others = [n for n in every if n.exit_code is None or n.exit_signal is not None]
    if attempt.ranks.keys() != set(range(count)) or attempt.world_size not in (None, count):
        return []
    return every if all(n.by_launcher for n in others) else []
