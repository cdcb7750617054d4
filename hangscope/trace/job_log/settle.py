"""Whose evidence is it, how did its process end, and which group does it speak of?

Settled once the whole log is known: who wrote under a local rank or a process id, whom the
launcher told to stop, and the group of timeouts that name none.
"""

from __future__ import annotations

from hangscope.trace import operations
from hangscope.trace.alike import but_numbers
from hangscope.trace.job_log.nodes import ABORTED, of_local_rank, several_nodes
from hangscope.trace.job_log.readers.agreement import settle_comparisons
from hangscope.trace.job_log.readers.evidence import (
    DEFAULT_GROUP,
    UNKNOWN_GROUP,
    Evidence,
    GroupId,
    Operation,
    RankNotes,
)
from hangscope.trace.job_log.readers.launcher import ended
from hangscope.trace.job_log.sayings import (
    settle_addresses,
    settle_barriers,
    settle_chains,
    settle_half_told,
    settle_shared_places,
    settle_store_barrier,
    settle_stuck_watchdogs,
    settle_traps,
)
from hangscope.trace.job_log.unsigned import dead_thread, settle_unsigned
from hangscope.trace.model import MAX_RANK, Claim

_GRACE_NS = 20 * 10**9
_SIGTERM, _SIGKILL, _SIGABRT = 15, 9, 6
_FATAL = (4, 7, 8, 11)
_OWN_REASONS = ("oom", "device_error")
_REASONS = (*_OWN_REASONS, "network_error", "rendezvous", "timeout", "size_mismatch")
_SAME_HISTORY = 1000
"""Sequence numbers without a group that lie further apart count in different groups."""


def settle(evidence: Evidence) -> None:
    """Complete the evidence in place."""
    if evidence.comm_size is not None:
        evidence.world_size = max(evidence.world_size or 0, evidence.comm_size)
    if (evidence.world_size or 0) > MAX_RANK + 1:
        evidence.world_size = None  # a damaged number
    settle_comparisons(evidence)
    _settle_writers(evidence)
    settle_traps(evidence)
    settle_chains(evidence)
    _settle_stacks(evidence)
    _settle_endings(evidence)
    settle_shared_places(evidence)
    _settle_groups(evidence)
    settle_barriers(evidence)
    settle_addresses(evidence)
    settle_store_barrier(evidence)
    settle_half_told(evidence)
    settle_stuck_watchdogs(evidence)
    settle_unsigned(evidence)
    if evidence.thinned:
        for notes in evidence.ranks.values():
            notes.half_told |= not (notes.operations or notes.counters or _has_end(notes))
    if evidence.cut or evidence.thinned:
        cut = Claim("other", certain=False, details={"cut": True})
        evidence.claims.append((cut, None))


def _settle_writers(evidence: Evidence) -> None:
    """Give exceptions of writers known only by local rank or pid to a rank."""
    several = several_nodes(evidence)
    several_in_a_task = evidence.elastic or evidence.launcher_failures or evidence.shared_tasks
    for local, pid, node, trouble in evidence.troubles:
        rank = evidence.pid_rank.get(pid) if pid is not None else None
        if rank is None and local is not None:
            rank = evidence.local_to_rank.get(local)
            if rank is None and not node and not several:
                rank = local
                evidence.of(rank).by_local_rank = True
        unknown = rank is None and local is None and pid is None
        if unknown and node is not None and not several_in_a_task:
            rank = node  # srun --label with one task per rank
            evidence.of(rank).by_local_rank = True
        if rank is not None:
            evidence.of(rank).troubles.append(trouble)
        elif local is not None or node is not None or pid is not None:
            evidence.strangers.append(trouble)
        else:
            evidence.nobodys.append(trouble)
            if trouble.thread_name != "MainThread":
                evidence.claims.append((dead_thread(trouble), None))
    evidence.troubles.clear()


def _settle_stacks(evidence: Evidence) -> None:
    """Give stacks to the ranks whose they are; what is left belongs to nobody."""
    rest = []
    several = several_nodes(evidence)
    for seen in evidence.stacks:
        rank = seen.rank
        if rank is None and seen.pid is not None:
            rank = evidence.pid_rank.get(seen.pid)
        if rank is None and seen.local_rank is not None:
            rank = evidence.local_to_rank.get(seen.local_rank)
            if rank is None and not several:
                rank = seen.local_rank
        if not any(frames for _, _, frames in seen.threads):
            continue
        if rank is None:
            rest.append(seen)
        else:
            evidence.of(rank).seen = seen
    evidence.stacks[:] = rest


def _settle_endings(evidence: Evidence) -> None:
    """Exit codes and signals that the launcher reported by local rank, pid or task."""
    several = several_nodes(evidence)
    for local, pid, code, at_ns, _, _ in evidence.launcher_failures:
        rank = evidence.pid_rank.get(pid)
        concluded = False
        if rank is None:
            rank = of_local_rank(evidence, local, code) if several else None
            concluded = rank is not None and rank != evidence.local_to_rank.get(local)
        if rank is None and not several:
            rank = evidence.local_to_rank.get(local)
        if rank is None:
            rank = _only_one_to_raise(evidence, code)
        guessed = rank is None or concluded
        if rank is None and not several:
            rank = local
        gave_up = rank in evidence.ranks and bool(evidence.ranks[rank].operations)
        if guessed and gave_up and code not in ABORTED:
            rank = None  # it lived to say that it had waited: another node's has that number
        if rank is None:
            evidence.unattributed_ends += 1
            continue
        notes = evidence.of(rank)
        if not _has_end(notes):
            ended(evidence, rank, code, at_ns)
            notes.by_local_rank |= guessed
    ranks_by_task = _tasks_are_ranks(evidence)
    for task, host, exit_code, signal, oom, at_ns in evidence.task_ends:
        if not ranks_by_task:
            text = f"task {task} on {host} ended (of several processes, here)"
            claim = Claim("launcher_failure", text=text, at_ns=at_ns, certain=False)
            evidence.claims.append((claim, None))
            continue
        notes = evidence.of(task)
        notes.host = notes.host or host
        notes.exit_code = notes.exit_code if notes.exit_code is not None else exit_code
        notes.exit_signal = notes.exit_signal if notes.exit_signal is not None else signal
        notes.oom_killed |= oom
        notes.by_launcher |= task in evidence.stopped_tasks
        notes.exit_ns = notes.exit_ns or at_ns
    _died(evidence)
    for pid in evidence.oom_pids:
        rank = evidence.pid_rank.get(pid)
        if rank is not None:
            evidence.of(rank).oom_killed = True
    _terminated(evidence)
    _killed_after_failures(evidence)
    crashed = [n for n in evidence.ranks.values() if n.exit_signal in _FATAL]
    if len(crashed) == 1 and len(evidence.stacks) == 1 and crashed[0].seen is None:
        crashed[0].seen = evidence.stacks.pop()  # what it printed when it died
    _explained_by_nobodys_words(evidence)


def _died(evidence: Evidence) -> None:
    """Workers that a scheduler found dead; one whose watchdog had given up aborted itself."""
    for pid, at_ns in evidence.dead_pids.items():
        rank = evidence.pid_rank.get(pid)
        if rank is None:
            evidence.unattributed_ends += 1
            text = f"Ray: the worker of process {pid} died"
            died = Claim("launcher_failure", text=text, at_ns=at_ns, certain=False)
            evidence.claims.append((died, None))
            continue
        notes = evidence.of(rank)
        if not (_has_end(notes) or notes.operations):
            notes.found_dead, notes.exit_ns = True, at_ns
            notes.exit_text = "its process died, says Ray, and not how"


def _only_one_to_raise(evidence: Evidence, code: int) -> int | None:
    """The rank that ended with Python's own status, where one process did and one rank raised."""
    if code != 1 or len(evidence.launcher_failures) != 1:
        return None
    raised = [r for r, n in evidence.ranks.items() if any(t.uncaught for t in n.troubles)]
    return raised[0] if len(raised) == 1 else None


def _killed_after_failures(evidence: Evidence) -> None:
    """A SIGKILL long after others had failed is what launchers do to those that will not stop."""
    ends = [n for n in evidence.ranks.values() if _has_end(n) and n.exit_ns]
    own = [n.exit_ns for n in ends if n.exit_signal not in (_SIGTERM, _SIGKILL)]
    if not own:
        _killed_beside_a_failure(evidence)
        return
    for notes in ends:
        late = notes.exit_ns - min(own) >= _GRACE_NS
        if notes.exit_signal == _SIGKILL and late and not notes.oom_killed:
            notes.by_launcher = True


def _killed_beside_a_failure(evidence: Evidence) -> None:
    """Nobody says when: where one process alone failed by itself and all others were killed, they
    were killed because of it (Hydra does so)."""
    ends = [n for n in evidence.ranks.values() if _has_end(n)]
    killed = [n for n in ends if n.exit_signal == _SIGKILL and not n.oom_killed]
    own = [n for n in ends if n.exit_signal not in (_SIGTERM, _SIGKILL, _SIGABRT)]
    if len(killed) > 1 and len(own) == 1 and len(killed) + 1 == len(ends):
        for notes in killed:
            notes.by_launcher = True


def _explained_by_nobodys_words(evidence: Evidence) -> None:
    """Processes ended, and one reason was printed without a rank, as often as they are: theirs."""
    ended_ = [n for n in evidence.ranks.values() if n.exit_code and n.exit_signal is None]
    if any(n.operations for n in ended_):
        return  # what one of them ended of is told: it gave up waiting
    if not ended_ or evidence.unattributed_ends or any(n.troubles for n in ended_):
        return
    reasons = {(t.type_name, but_numbers(t.message.partition("\n")[0])) for t in evidence.nobodys}
    if len(reasons) == 1 and len(evidence.nobodys) >= len(ended_):
        for notes in ended_:
            notes.troubles.append(evidence.nobodys[0])
        evidence.nobodys.clear()
    elif not reasons and len(ended_) == 1 and not ended_[0].exit_text:
        said = [c for c, _ in evidence.claims if c.kind in _REASONS and c.reporter is None]
        own = [c for c in said if c.kind in _OWN_REASONS]
        for claim in (own or said)[:1]:
            ended_[0].exit_text, ended_[0].echo = claim.text[:300], claim not in own


def _tasks_are_ranks(evidence: Evidence) -> bool:
    """Not where torchrun runs under srun: then a task is a node."""
    if evidence.launcher_failures or evidence.terminated_pids or evidence.elastic:
        return False
    highest = max(evidence.ranks, default=-1)
    tasks = max((t[0] for t in evidence.task_ends), default=-1)
    if highest <= tasks or (evidence.world_size or 0) > tasks:
        return True
    # A task of several ranks takes several with it: here exactly those are silent that ended.
    silent = set(range(highest + 1)) - set(evidence.ranks)
    return bool(silent) and silent == {t[0] for t in evidence.task_ends}


def _terminated(evidence: Evidence) -> None:
    """Ranks that the launcher told to stop: their end is somebody else's doing."""
    unknown = 0
    for pid in evidence.terminated_pids:
        rank = evidence.pid_rank.get(pid)
        if rank is None:
            unknown += 1
        else:
            evidence.of(rank).by_launcher = True
    if not unknown or evidence.world_size is None:
        return
    ended = {r for r, n in evidence.ranks.items() if _has_end(n)}
    rest = set(range(evidence.world_size)) - ended
    rest -= {r for r, n in evidence.ranks.items() if n.by_launcher}
    if len(rest) == unknown:
        for rank in rest:
            evidence.of(rank).by_launcher = True


def _has_end(notes: RankNotes) -> bool:
    return notes.exit_code is not None or notes.exit_signal is not None


def _settle_groups(evidence: Evidence) -> None:
    """Find a group for timeouts that name none.

    First by the counters of the same rank; else, where all such numbers may belong to one history,
    the default group; else every cluster of numbers becomes a group of its own. Where a line shows
    that a rank has another place in some group, there are smaller groups: then only a place that
    none of those has shown is one in the default group. Nor is one concluded to be the default
    group's where lines name other groups: its watchdog has not come to say which it is.
    """
    open_: list[tuple[int, Operation]] = []
    named = False
    for rank, notes in evidence.ranks.items():
        named |= any(
            g not in (UNKNOWN_GROUP, DEFAULT_GROUP) for g in (*notes.places, *notes.counters)
        )
        for operation in [o for o in notes.operations if o.group == UNKNOWN_GROUP]:
            group = _by_counters(notes, operation)
            if group is not None:
                operation.group = group
            else:
                open_.append((rank, operation))
        _counters_without_label(notes)
    open_ = [item for item in open_ if not _adopted(item[1], evidence)]
    inner = [o.place for rank, o in open_ if o.place not in (None, rank)]
    if inner or named:
        largest = max((place for place in inner if place is not None), default=-1)
        for rank, operation in open_:
            if named or operation.place != rank or rank <= largest:
                operation.group = (f"?{rank}", "unknown group")
        open_ = [item for item in open_ if item[1].group == UNKNOWN_GROUP]
    collectives = sorted(
        (item for item in open_ if not operations.is_p2p(item[1].signature.op)),
        key=lambda item: item[1].seq,
    )
    for _, operation in open_:
        operation.group = DEFAULT_GROUP
    clusters = 0
    last: int | None = None
    for _, operation in collectives:
        if last is not None and operation.seq - last > _SAME_HISTORY:
            clusters += 1
        last = operation.seq
        if clusters:
            operation.group = (f"?{clusters}", "unknown group")
    if clusters:  # no cluster has a better claim to be the default group than another
        for _, operation in collectives:
            if operation.group == DEFAULT_GROUP:
                operation.group = ("?0", "unknown group")


def _adopted(operation: Operation, evidence: Evidence) -> bool:
    """Put a timeout that names no group into the one where all others are in the same operation."""
    like = {
        other.group
        for notes in evidence.ranks.values()
        for other in notes.operations
        if other.group != UNKNOWN_GROUP
        and (other.seq, other.signature) == (operation.seq, operation.signature)
    }
    if len(like) == 1 and operation.seq and not operations.is_p2p(operation.signature.op):
        (operation.group,) = like
        return True
    return False


def _by_counters(notes: RankNotes, operation: Operation) -> GroupId | None:
    """The one labelled group of the rank in which this number can be the overdue one."""
    alike = [o for o in notes.operations if o.seq == operation.seq]
    told = {o.group for o in alike} - {UNKNOWN_GROUP}
    if sum(o.group == UNKNOWN_GROUP for o in alike) > 1:
        return None  # several groups are at this number
    labelled = {g: c for g, c in notes.counters.items() if g not in (UNKNOWN_GROUP, *told)}
    fitting = [
        g
        for g, c in labelled.items()
        if c.completed < operation.seq <= max(c.enqueued, operation.seq)
        and (c.enqueued < 0 or operation.seq <= c.enqueued)
    ]
    if len(fitting) == 1:
        return fitting[0]
    next_up = [g for g in fitting if labelled[g].completed == operation.seq - 1]
    if len(next_up) == 1:
        return next_up[0]
    groups = [g for g in notes.places if g != UNKNOWN_GROUP]
    return groups[0] if len(groups) == 1 and not labelled else None


def _counters_without_label(notes: RankNotes) -> None:
    """Counters under the old label (``[Rank 3]``) belong to the group of the rank's timeouts."""
    bare = notes.counters.pop(UNKNOWN_GROUP, None)
    if bare is None:
        return
    groups = {o.group for o in notes.operations if o.group != UNKNOWN_GROUP}
    target = groups.pop() if len(groups) == 1 else DEFAULT_GROUP
    notes.counters.setdefault(target, bare)
