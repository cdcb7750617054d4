"""Resolves process ends that launchers and schedulers report by local rank, pid or task."""

from __future__ import annotations

from dataclasses import replace

from hangscope.trace import signals
from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.evidence.notes import RankNotes
from hangscope.trace.job_log.evidence.process_ends import LauncherFailure
from hangscope.trace.job_log.lines.line import Machine
from hangscope.trace.job_log.resolving.local_ranks import (
    ABORTED,
    rank_of_ended_process,
    spans_nodes,
)
from hangscope.trace.message_template import mask_numbers
from hangscope.trace.model import Claim

_GRACE_NS = 20 * 10**9
"""Launchers wait at least this long for processes to stop before they kill them."""
_OF_SIGNALS = 128
"""Exit statuses from here on are shells' for signals."""
_OWN_REASONS = ("oom", "device_error")
_REASONS = (*_OWN_REASONS, "network_error", "rendezvous", "timeout", "size_mismatch")


def resolve_process_ends(evidence: Evidence) -> None:
    """Record for each rank how its process ended, and whether its launcher ended it."""
    _failures(evidence)
    _task_ends(evidence)
    _deaths(evidence)
    for process in evidence.ends.out_of_memory:
        rank = evidence.processes.of_pid(*process)
        if rank is not None:
            evidence.of(rank).oom_killed = True
    _terminated(evidence)
    _killed_after_failures(evidence)
    _attribute_crash_stack(evidence)
    _explain_by_anonymous_exceptions(evidence)


def _failures(evidence: Evidence) -> None:
    """Processes that a launcher reports as failed."""
    several = spans_nodes(evidence)
    for failure in evidence.ends.failures:
        rank, guessed = _rank_of(failure, evidence, several)
        gave_up = rank in evidence.ranks and bool(evidence.ranks[rank].operations)
        if guessed and gave_up and failure.exit_code not in ABORTED:
            rank = None  # it lived long enough to time out: the failure is on another node
        if _is_aftermath(failure, rank, evidence):
            continue
        if rank is None:
            evidence.unattributed_ends += 1
            unheard = _is_unheard_of(failure, evidence)
            if unheard or not _tells_more(evidence):
                evidence.claims.append((_unattributed_failure(failure, unheard=unheard), None))
            continue
        notes = evidence.of(rank)
        if not notes.has_ended:
            notes.ended(failure.exit_code, failure.at_ns)
            counted = evidence.processes.is_counted(rank)
            notes.by_local_rank |= guessed or counted
            sure = several or counted or evidence.processes.is_one_node
            notes.local_as_rank |= guessed and not sure


def _is_aftermath(failure: LauncherFailure, rank: int | None, evidence: Evidence) -> bool:
    """Whether a process left with a plain status, for no reason that is told, only after others had
    given up waiting.

    A launcher ends all processes of its node as soon as one has left. So nobody there had left
    before those timeouts, and whoever left later did so because of them.
    """
    if not 0 < failure.exit_code < _OF_SIGNALS or not failure.line:
        return False
    if rank is not None and rank in evidence.ranks and evidence.ranks[rank].exceptions:
        return False
    overdue = [o for n in evidence.ranks.values() for o in n.operations if o.timed_out]
    first = min(overdue, key=lambda o: o.line, default=None)
    if first is None or not 0 < first.line < failure.line:
        return False
    if any(trouble.line < first.line for trouble in evidence.raised.anonymous):
        return False  # it may have raised that, and left late
    return not (first.at_ns and failure.at_ns) or first.at_ns <= failure.at_ns


def _tells_more(evidence: Evidence) -> bool:
    """Whether there is other evidence: about a rank, or an anonymous exception."""
    heard = any(notes.tells() for notes in evidence.ranks.values())
    return heard or bool(evidence.raised.anonymous or evidence.raised.unranked)


def _is_unheard_of(failure: LauncherFailure, evidence: Evidence) -> bool:
    """Whether a failed process is none of the ranks in the log: it is on another machine, failed
    before they gave up, or shares its local rank with another failure.
    """
    if failure.exit_code in ABORTED:
        return False
    local, at_ns, machine = failure.local_rank, failure.at_ns, failure.machine
    alike = [f for f in evidence.ends.failures if f.local_rank == local]
    if len({(f.pid, f.machine, f.exit_code) for f in alike}) > 1:
        return True
    heard = [n for n in evidence.ranks.values() if n.tells()]
    elsewhere = [n.host is not None and not Machine(n.host).may_be(machine) for n in heard]
    gave_up_ns = [o.at_ns for n in heard for o in n.operations if o.timed_out]
    before = bool(gave_up_ns) and 0 < at_ns < min(gave_up_ns)
    return bool(heard) and (all(elsewhere) or before)


def _unattributed_failure(failure: LauncherFailure, *, unheard: bool) -> Claim:
    where = f" on {failure.machine.host}" if failure.machine.host else ""
    code = failure.exit_code
    how = f"killed by {signals.name_of(-code)}" if code < 0 else f"exit status {code}"
    return Claim(
        "launcher_failure",
        text=f"a process with local rank {failure.local_rank}{where} ended: {how}",
        at_ns=failure.at_ns,
        certain=False,
        details={"unheard": unheard},
    )


def _rank_of(
    failure: LauncherFailure, evidence: Evidence, several: bool
) -> tuple[int | None, bool]:
    """The rank of a failed process, and whether it was inferred from the local rank alone.

    ``several``: the log may be of several nodes, which have the same local ranks.
    """
    processes, local, machine = evidence.processes, failure.local_rank, failure.machine
    told = processes.of_pid(failure.pid, machine)
    told = processes.stated(local, machine) if told is None else told
    if told is not None:
        return told, False
    first = [] if machine.is_unknown else processes.first_ranks(machine)
    if len(first) == 1:
        return first[0] + local, first[0] + local not in evidence.ranks
    by_local_rank = processes.of_local(local, machine)
    if several:
        rank = rank_of_ended_process(evidence, failure)
        if rank is not None:
            return rank, rank != by_local_rank
    elif by_local_rank is not None:
        return by_local_rank, False
    raised = _only_one_to_raise(evidence, failure.exit_code)
    if raised is not None:
        return raised, False
    return (None if several else failure.local_rank), True


def _only_one_to_raise(evidence: Evidence, code: int) -> int | None:
    """The rank that exited with Python's own status, if one process did and one rank raised."""
    if code != 1 or len(evidence.ends.failures) != 1:
        return None
    raised = [r for r, n in evidence.ranks.items() if any(t.uncaught for t in n.exceptions)]
    return raised[0] if len(raised) == 1 else None


def _task_ends(evidence: Evidence) -> None:
    """Ends of tasks, as reported by a scheduler."""
    tasks_are_ranks = _tasks_are_ranks(evidence)
    for end in evidence.ends.of_tasks:
        if not tasks_are_ranks:
            text = f"task {end.task} on {end.host} ended (of several processes, here)"
            claim = Claim("launcher_failure", text=text, at_ns=end.at_ns, certain=False)
            evidence.claims.append((claim, None))
            continue
        notes = evidence.of(end.task)
        notes.host = notes.host or end.host
        notes.exit_code = notes.exit_code if notes.exit_code is not None else end.exit_code
        notes.exit_signal = notes.exit_signal if notes.exit_signal is not None else end.signal
        notes.oom_killed |= end.oom
        notes.by_launcher |= end.task in evidence.ends.stopped_tasks
        notes.exit_ns = notes.exit_ns or end.at_ns


def _tasks_are_ranks(evidence: Evidence) -> bool:
    """False if torchrun runs under srun: then a task is a node."""
    if evidence.ends.failures or evidence.ends.stopped or evidence.elastic:
        return False
    highest = max(evidence.ranks, default=-1)
    tasks = max((t.task for t in evidence.ends.of_tasks), default=-1)
    if highest <= tasks or (evidence.world_size or 0) > tasks:
        return True
    # A task with several ranks would take them all down; here exactly the ended ones are silent.
    silent = set(range(highest + 1)) - set(evidence.ranks)
    return bool(silent) and silent == {t.task for t in evidence.ends.of_tasks}


def _deaths(evidence: Evidence) -> None:
    """Workers that a scheduler found dead; one whose watchdog gave up aborted itself."""
    for process, at_ns in evidence.ends.found_dead.items():
        rank = evidence.processes.of_pid(*process)
        if rank is None:
            evidence.unattributed_ends += 1
            text = f"Ray: the worker of process {process.pid} died"
            died = Claim("launcher_failure", text=text, at_ns=at_ns, certain=False)
            evidence.claims.append((died, None))
            continue
        notes = evidence.of(rank)
        if not (notes.has_ended or notes.operations):
            notes.found_dead, notes.exit_ns = True, at_ns
            notes.exit_text = "its process died, says Ray, and not how"


def _terminated(evidence: Evidence) -> None:
    """Ranks that the launcher told to stop are victims."""
    unknown = 0
    for process in evidence.ends.stopped:
        rank = evidence.processes.of_pid(*process)
        if rank is None:
            unknown += 1
        else:
            evidence.of(rank).by_launcher = True
    if not unknown or evidence.world_size is None:
        return
    ended = {r for r, n in evidence.ranks.items() if n.has_ended}
    rest = set(range(evidence.world_size)) - ended
    rest -= {r for r, n in evidence.ranks.items() if n.by_launcher}
    if len(rest) == unknown:
        for rank in rest:
            evidence.of(rank).by_launcher = True


def _killed_after_failures(evidence: Evidence) -> None:
    """A SIGKILL long after other failures is the launcher's, for ranks that would not stop."""
    ends = [n for n in evidence.ranks.values() if n.has_ended and n.exit_ns]
    own = [n.exit_ns for n in ends if n.exit_signal not in (signals.SIGTERM, signals.SIGKILL)]
    if not own:
        _killed_beside_a_failure(evidence)
        return
    for notes in ends:
        late = notes.exit_ns - min(own) >= _GRACE_NS
        if notes.exit_signal == signals.SIGKILL and late and not notes.oom_killed:
            notes.by_launcher = True


def _killed_beside_a_failure(evidence: Evidence) -> None:
    """Without times: if one process failed by itself and all others were killed, they were killed
    because of it (as Hydra does).
    """
    ends = [n for n in evidence.ranks.values() if n.has_ended]
    killed = [n for n in ends if n.exit_signal == signals.SIGKILL and not n.oom_killed]
    own = [
        n for n in ends if n.exit_signal not in (signals.SIGTERM, signals.SIGKILL, signals.SIGABRT)
    ]
    if len(killed) > 1 and len(own) == 1 and len(killed) + 1 == len(ends):
        for notes in killed:
            notes.by_launcher = True


def _all_of_them(evidence: Evidence) -> list[RankNotes]:
    """Every rank, if there are as many anonymous exceptions as ranks: then each raised one.

    A rank that the launcher stopped when it saw the first of them end was already exiting.
    """
    every = [*evidence.ranks.values()]
    ranks = {notes.rank for notes in every}
    others = [n for n in every if n.exit_code is None or n.exit_signal is not None]
    known = ranks == set(range(len(evidence.raised.anonymous))) and evidence.world_size in (
        None,
        len(every),
    )
    return every if known and all(n.by_launcher for n in others) else []


def _attribute_crash_stack(evidence: Evidence) -> None:
    """Attribute an anonymous stack if exactly one process crashed: it printed that as it did."""
    crashed = [n for n in evidence.ranks.values() if n.exit_signal in signals.FAULTS]
    if len(crashed) == 1 and len(evidence.stacks) == 1 and crashed[0].seen is None:
        crashed[0].seen = evidence.stacks.pop()


def _explain_by_anonymous_exceptions(evidence: Evidence) -> None:
    """Attribute one anonymous reason that was printed as often as processes ended."""
    ended = [n for n in evidence.ranks.values() if n.exit_code and n.exit_signal is None]
    if any(n.operations for n in ended):
        return  # the reason of one is known: it gave up waiting
    if not ended or evidence.unattributed_ends or any(n.exceptions for n in ended):
        return
    reasons = {
        (t.type_name, mask_numbers(t.message.partition("\n")[0])) for t in evidence.raised.anonymous
    }
    if len(reasons) == 1 and len(evidence.raised.anonymous) >= len(ended):
        for notes in _all_of_them(evidence) or ended:
            notes.exceptions.append(replace(evidence.raised.anonymous[0], uncaught=True))
        evidence.raised.anonymous.clear()
    elif not reasons and len(ended) == 1 and not ended[0].exit_text:
        said = [c for c, _ in evidence.claims if c.kind in _REASONS and c.reporter is None]
        own = [c for c in said if c.kind in _OWN_REASONS]
        for claim in (own or said)[:1]:
            ended[0].exit_text, ended[0].echo = claim.text[:300], claim not in own
