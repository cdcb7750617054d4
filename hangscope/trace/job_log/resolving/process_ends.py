"""How processes ended, as launchers and schedulers report it by local rank, process id or task."""

from __future__ import annotations

from dataclasses import replace

from hangscope.trace import signals
from hangscope.trace.job_log.lines.line import Machine
from hangscope.trace.job_log.readers.evidence import Evidence, RankNotes
from hangscope.trace.job_log.readers.process_ends import LauncherFailure
from hangscope.trace.job_log.resolving.local_ranks import ABORTED, of_local_rank, several_nodes
from hangscope.trace.message_template import mask_numbers
from hangscope.trace.model import Claim

_GRACE_NS = 20 * 10**9
"""So long, at the least, launchers wait for processes to stop before they kill them."""
_OWN_REASONS = ("oom", "device_error")
_REASONS = (*_OWN_REASONS, "network_error", "rendezvous", "timeout", "size_mismatch")


def settle_endings(evidence: Evidence) -> None:
    """Note with each rank how its process ended, and whether its launcher ended it."""
    _failures(evidence)
    _task_ends(evidence)
    _deaths(evidence)
    for process in evidence.ends.out_of_memory:
        rank = evidence.processes.of_pid(*process)
        if rank is not None:
            evidence.of(rank).oom_killed = True
    _terminated(evidence)
    _killed_after_failures(evidence)
    _last_stack(evidence)
    _explained_by_nobodys_words(evidence)


def _failures(evidence: Evidence) -> None:
    """Processes of which a launcher says that they failed."""
    several = several_nodes(evidence)
    for failure in evidence.ends.failures:
        rank, guessed = _rank_of(failure, evidence, several)
        gave_up = rank in evidence.ranks and bool(evidence.ranks[rank].operations)
        if guessed and gave_up and failure.exit_code not in ABORTED:
            rank = None  # it lived to say that it had waited: another node's has that number
        if rank is None:
            evidence.unattributed_ends += 1
            unheard = _is_unheard_of(failure, evidence)
            if unheard or not _tells_more(evidence):
                evidence.claims.append((_of_another(failure, unheard=unheard), None))
            continue
        notes = evidence.of(rank)
        if not notes.has_ended:
            notes.ended(failure.exit_code, failure.at_ns)
            counted = evidence.processes.is_counted(rank)
            notes.by_local_rank |= guessed or counted
            sure = several or counted or evidence.processes.is_one_node
            notes.local_as_rank |= guessed and not sure


def _tells_more(evidence: Evidence) -> bool:
    """Whether anything else is told of the job: of a rank, or an exception of nobody's."""
    heard = any(notes.tells() for notes in evidence.ranks.values())
    return heard or bool(evidence.nobodys or evidence.strangers)


def _is_unheard_of(failure: LauncherFailure, evidence: Evidence) -> bool:
    """Whether a process that failed is none of the ranks that the log speaks of: it is of another
    machine than they, failed before they gave up, or has a number of which another one failed.
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


def _of_another(failure: LauncherFailure, *, unheard: bool) -> Claim:
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
    """The rank of a process that failed, and whether it is concluded from the local rank alone.

    ``several``: the log may be of several nodes, whose local ranks are the same.
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
        rank = of_local_rank(evidence, failure)
        if rank is not None:
            return rank, rank != by_local_rank
    elif by_local_rank is not None:
        return by_local_rank, False
    raised = _only_one_to_raise(evidence, failure.exit_code)
    if raised is not None:
        return raised, False
    return (None if several else failure.local_rank), True


def _only_one_to_raise(evidence: Evidence, code: int) -> int | None:
    """The rank that ended with Python's own status, where one process did and one rank raised."""
    if code != 1 or len(evidence.ends.failures) != 1:
        return None
    raised = [r for r, n in evidence.ranks.items() if any(t.uncaught for t in n.troubles)]
    return raised[0] if len(raised) == 1 else None


def _task_ends(evidence: Evidence) -> None:
    """Tasks of which a scheduler says how they ended."""
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
    """Not where torchrun runs under srun: then a task is a node."""
    if evidence.ends.failures or evidence.ends.stopped or evidence.elastic:
        return False
    highest = max(evidence.ranks, default=-1)
    tasks = max((t.task for t in evidence.ends.of_tasks), default=-1)
    if highest <= tasks or (evidence.world_size or 0) > tasks:
        return True
    # A task of several ranks takes several with it: here exactly those are silent that ended.
    silent = set(range(highest + 1)) - set(evidence.ranks)
    return bool(silent) and silent == {t.task for t in evidence.ends.of_tasks}


def _deaths(evidence: Evidence) -> None:
    """Workers that a scheduler found dead; one whose watchdog had given up aborted itself."""
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
    """Ranks that the launcher told to stop: their end is somebody else's doing."""
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
    """A SIGKILL long after others had failed is what launchers do to those that will not stop."""
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
    """Nobody says when: where one process alone failed by itself and all others were killed, they
    were killed because of it (Hydra does so)."""
    ends = [n for n in evidence.ranks.values() if n.has_ended]
    killed = [n for n in ends if n.exit_signal == signals.SIGKILL and not n.oom_killed]
    own = [
        n for n in ends if n.exit_signal not in (signals.SIGTERM, signals.SIGKILL, signals.SIGABRT)
    ]
    if len(killed) > 1 and len(own) == 1 and len(killed) + 1 == len(ends):
        for notes in killed:
            notes.by_launcher = True


def _all_of_them(evidence: Evidence) -> list[RankNotes]:
    """Every rank, where as many exceptions of nobody's were printed: then each has raised one.

    Whom the launcher stopped as it saw the first of them end was on its way out already.
    """
    every = [*evidence.ranks.values()]
    ranks = {notes.rank for notes in every}
    others = [n for n in every if n.exit_code is None or n.exit_signal is not None]
    known = ranks == set(range(len(evidence.nobodys))) and evidence.world_size in (None, len(every))
    return every if known and all(n.by_launcher for n in others) else []


def _last_stack(evidence: Evidence) -> None:
    """A stack of nobody's, where one process alone crashed: it printed that when it did."""
    crashed = [n for n in evidence.ranks.values() if n.exit_signal in signals.FAULTS]
    if len(crashed) == 1 and len(evidence.stacks) == 1 and crashed[0].seen is None:
        crashed[0].seen = evidence.stacks.pop()


def _explained_by_nobodys_words(evidence: Evidence) -> None:
    """Processes ended, and one reason was printed without a rank, as often as they are: theirs."""
    ended = [n for n in evidence.ranks.values() if n.exit_code and n.exit_signal is None]
    if any(n.operations for n in ended):
        return  # what one of them ended of is told: it gave up waiting
    if not ended or evidence.unattributed_ends or any(n.troubles for n in ended):
        return
    reasons = {(t.type_name, mask_numbers(t.message.partition("\n")[0])) for t in evidence.nobodys}
    if len(reasons) == 1 and len(evidence.nobodys) >= len(ended):
        for notes in _all_of_them(evidence) or ended:
            notes.troubles.append(replace(evidence.nobodys[0], uncaught=True))
        evidence.nobodys.clear()
    elif not reasons and len(ended) == 1 and not ended[0].exit_text:
        said = [c for c, _ in evidence.claims if c.kind in _REASONS and c.reporter is None]
        own = [c for c in said if c.kind in _OWN_REASONS]
        for claim in (own or said)[:1]:
            ended[0].exit_text, ended[0].echo = claim.text[:300], claim not in own
