"""The fix for each kind of finding, in one sentence, and its hang class (D1-D23)."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.processes.host import CHECKPOINT, LOADER, Host
from hangscope.diagnosis.processes.stacks import innermost, is_over, where
from hangscope.diagnosis.words.blocked import blocked_in, frame_names

_WORKS = ("busy", "running")
SYMPTOM = "; the hang of the others is its symptom"


@dataclass(frozen=True, slots=True)
class Advice:
    """``fix`` is one sentence without a final full stop, ``playbook`` like ``"D9, D22"``."""

    fix: str
    playbook: str


def place_of(host: Host | None, address: str) -> str:
    """``data.py:41 in load_batch on host node0 (pid 4711)``, as far as it is known."""
    frame = innermost(host.stack) if host is not None else None
    return " ".join(x for x in (where(frame), address) if x)


def _at(detail: str) -> str:
    """A line after a colon, a host without a line after a comma; nothing for nothing."""
    return "" if not detail else f"{', ' if detail.startswith('on host') else ': '}{detail}"


def mismatch(aspect: str, *, guarded: bool = False) -> Advice:
    """Members that issued what cannot go together; ``aspect`` is that of the `Mismatch`.

    ``guarded``: one side's call site was never reached by the other side.
    """
    if aspect == "op":
        if guarded:
            return Advice(
                "run the collective on every rank, or on none, and guard only its side effect "
                "with `if rank == 0`",
                "D21, D19",
            )
        return Advice("make every member issue the same operations in the same order", "D19, D21")
    if aspect == "numel":
        return Advice(
            "give every member tensors of the same size: pad the last batch, or gather the sizes "
            "first",
            "D19, D22",
        )
    if aspect == "dtype":
        return Advice(
            "cast to one dtype before the collective; under FSDP set param, reduce and buffer "
            "dtypes alike on every rank",
            "D14, D19",
        )
    if aspect == "device":
        return Advice(
            "move the tensors to the same device on every member: a group with a backend for each "
            "(cpu:gloo,cuda:nccl) takes either without a word",
            "D19",
        )
    if aspect == "history":
        return Advice(
            "record more (HANGSCOPE_BUFFER) and run again: the first difference has been "
            "overwritten",
            "D19",
        )
    if aspect == "root":
        return Advice(
            "pass the same src or dst on every member: it is a global rank, in a subgroup, too "
            "(dist.get_global_rank, or group_src and group_dst)",
            "D19",
        )
    return Advice("pass the same reduce operation on every member", "D19")


def out_of_step(ranks: str) -> Advice:
    """``ranks`` are at a line at which the others have been before."""
    return Advice(
        f"all ranks come there: look for what made {ranks} repeat an operation or leave one out "
        "(a caught exception, a retry, `continue`, another number of steps)",
        "D19, D20",
    )


def left_out(ranks: str, title: str) -> Advice:
    """``ranks`` came to something else without ``title``, in which others wait for them."""
    return Advice(
        f"look for what made {ranks} leave out {title}, or put it off (a branch, a caught "
        "exception, `continue`): all ranks must use the groups, and their halves of pairs, in one "
        "order",
        "D19, D21",
    )


def left_block(ranks: str) -> Advice:
    """``ranks`` are in the ``__exit__`` of a ``with`` block that the others are still inside of."""
    return Advice(
        f"look for an exception that ended the `with` block on {ranks} alone: what runs at its end "
        "must not wait for the others",
        "D20, D19",
    )


def handling(rank: str, error: str) -> Advice:
    """``rank`` came to a collective in an ``except`` or ``finally`` clause, and nobody else did."""
    return Advice(
        f"mend what raised {error}: {rank} alone was handling that; what runs in `except`, "
        "`finally` or `__exit__` must not wait for the others",
        "D20, D19",
    )


def fewer_steps(more: str = "") -> Advice:
    """A rank that was done with its program, or its loop, before the others."""
    return Advice(
        "equalise the number of batches over ranks (sampler and drop_last), wrap the loop in "
        f"Join{more}; where they are equal, look for a step that it left out (`continue`, a NaN "
        "check, a caught exception) or a loop that it left early (early stopping, a time limit): "
        "all ranks must decide that together",
        "D9, D22",
    )


def left_its_own_behind(rank: str) -> Advice:
    """``rank`` had issued what the others are in, and left before it was done."""
    return Advice(
        f"let {rank} wait for what it has issued before it leaves: work.wait() of asynchronous "
        "operations, destroy_process_group or a barrier at the end; os._exit waits for nothing",
        "D20, D9",
    )


def one_of_many(ranks: str) -> Advice:
    """Sizes differ at a line that issues another size each time: a loop over parameters, say."""
    return Advice(
        f"that line passes another size each time: look for what {ranks} left out, repeated or "
        "took in another order there (a key that is missing, a layer that is skipped, a set)",
        "D19, D8",
    )


def data_ended(rank: str) -> Advice:
    """``rank`` came to a collective as its iterator had nothing left."""
    return Advice(
        f"the data of {rank} ended before that of the others: equalise the number of batches over "
        "ranks (sampler and drop_last), or wrap the loop in Join",
        "D9, D22",
    )


def finalizer() -> Advice:
    """A collective in ``__del__``."""
    return Advice(
        "take the collective out of __del__: Python throws objects away at another moment on each "
        "rank; close them explicitly, on all ranks in the same step",
        "D19, D21",
    )


def world_again(ranks: str) -> Advice:
    """Default groups of which one was made later than the other."""
    return Advice(
        f"{ranks} and the others are in different worlds: call destroy_process_group and "
        "init_process_group again on all ranks, or on none",
        "D19, D21",
    )


def guarded_or_early(ranks: str) -> Advice:
    """``ranks`` are at a line that is new to all, while the others repeat what all have done."""
    return Advice(
        "run the collective on every rank, or on none, and guard only its side effect with "
        f"`if rank == 0`; if it follows a loop, {ranks} left that early or left a step of it out "
        "(`continue`, a caught exception): let all decide that together",
        "D21, D19, D9",
    )


def crossed_handles(line: str) -> Advice:
    """One line that uses groups of the same members, another one from rank to rank."""
    return Advice(
        f"{line} uses another group on one side, though their members are the same: make the "
        "groups in the same order on every rank (dist.new_group tells them apart by their order)",
        "D19",
    )


def splits() -> Advice:
    """An all-to-all whose members announce sizes that contradict each other."""
    return Advice(
        "exchange the split sizes first (an all_to_all of the counts): what one member sends to "
        "another must be what that one expects from it",
        "D19",
    )


def ring_of_waits(verb: str) -> Advice:
    """All ranks of a circle do the same half of a pair first."""
    return Advice(
        f"every rank of the circle waits in {verb} before it does its other half: let some of them "
        "begin with the other half, or issue both at once (isend and irecv, batch_isend_irecv)",
        "D19",
    )


def release_lock(line: str) -> Advice:
    """A rank that holds the lock of a file while it waits for ranks that want it."""
    return Advice(
        f"release that lock before {line or 'the collective'}: whatever needs the other ranks does "
        "not belong under a lock that they need to come there",
        "D19, D23",
    )


def lock_to_release(where_it_is: str) -> Advice:
    """A rank that does something else while it holds what others wait for."""
    look = f"look at {where_it_is}" if where_it_is else "look at what that rank does instead"
    return Advice(f"{look}: the others cannot go on before it releases that lock", "D19, D23")


def locks_in_order() -> Advice:
    """Ranks that hold a lock each, and want the other's."""
    return Advice("take these locks in one order on all ranks, or one lock for both", "D19, D23")


def new_groups() -> Advice:
    """Ranks in different calls of ``new_group``."""
    return Advice(
        "call new_group for every group on every rank and in the same order, also on ranks that "
        "are not members of it",
        "D19, D21",
    )


def leave_together() -> Advice:
    """A rank that left the program by itself: for a signal, an exception or its end."""
    return Advice(
        "a signal or an exception reaches one rank alone: let it set a flag, all-reduce the flag "
        "in every step, and save or leave on all ranks in the same step",
        "D21, D19",
    )


def key_to_set(where_it_is: str) -> Advice:
    """Ranks that wait in the store for a key that another rank was to set."""
    look = f"look at {where_it_is}" if where_it_is else "look at what that rank runs instead"
    return Advice(
        f"{look}: it has to set that key, under that very name, before it goes on to anything that "
        "needs the others",
        "D19, D21",
    )


def two_threads() -> Advice:
    """Operations of one group from several threads of a rank."""
    return Advice(
        "two threads issue operations in this group, so their order differs from rank to rank: "
        "give the thread a group of its own (dist.new_group)",
        "D19",
    )


def pool_of_threads() -> Advice:
    """Collectives that were given to a pool, as ``asyncio.to_thread`` does."""
    return Advice(
        "what is handed to a pool of threads comes in another order on each rank: await one "
        "collective before the next is handed over, or give each its own group (dist.new_group)",
        "D19",
    )


def buckets() -> Advice:
    """Gradient buckets of different sizes under one number."""
    return Advice(
        "use the same parameters on every rank in every step: a branch that one rank leaves out "
        "shifts its gradient buckets",
        "D8, D19",
    )


def missing(
    host: Host | None = None, address: str = "", *, first: bool = False, finalized: bool = False
) -> Advice:
    """A live rank that did not come; ``address`` is what `phrases.address` says of it.

    ``first``: the others still wait for it to reach ``init_process_group``; ``finalized``: it has
    destroyed its groups.
    """
    stack = host.stack if host is not None else ()
    look = f"look at {place_of(host, address)}"
    if not stack:
        look = "look at what that rank runs instead" + _at(address).removeprefix(",")
    inside = blocked_in(host)
    if inside:
        look += f": {inside}"
    state = host.state if host is not None else "unknown"
    phase = host.phase if host is not None else None
    if state == "stopped" and host is not None and host.gone:
        return Advice(
            f"find out who had stopped the process (SIGSTOP), {address}".rstrip(", "), "D19"
        )
    if state == "stopped" and host is not None and host.held_by:
        return Advice(
            f"let the process go on: {host.held_by} holds it, {address}".rstrip(", "), "D19"
        )
    if state == "stopped":
        return Advice(f"continue the stopped process (kill -CONT), {address}".rstrip(", "), "D19")
    if state == "gil-held":
        return Advice(
            f"{look}{';' if inside else ':'} C code holds the GIL there, so nothing else of this "
            "process can run",
            "D19",
        )
    if finalized or phase == "destroy_process_group":
        return fewer_steps()
    if is_over(stack):
        more = fewer_steps()
        return Advice(f"{look}; {more.fix}", more.playbook)
    if first:
        return Advice(
            f"{look}; check RANK, WORLD_SIZE and MASTER_ADDR of that process and what runs before "
            "init_process_group",
            "D1, D2",
        )
    names = frame_names(host)
    if (phase is not None and CHECKPOINT.search(phase)) or CHECKPOINT.search(names):
        return Advice(
            f"{look}; a checkpoint written by one rank must not outlast the timeout of the others",
            "D23, D21",
        )
    loads = LOADER.search(names) is not None
    if state in _WORKS and not inside:
        return Advice(
            f"{look}; if that only takes long, raise the timeout of init_process_group, or do it "
            "before that call",
            "D22" if loads else "D19",
        )
    if loads and not inside:
        return Advice(f"{look}; if loaders differ in length, equalise them or use Join", "D9, D22")
    return Advice(f"{look}; every rank must reach the collective that the others are in", "D19")


def dead_thread(name: str, detail: str) -> Advice:
    """A rank that ended with status 0 although a thread of it had failed."""
    return Advice(
        f"fix what ended the thread {name} of that rank{': ' + detail if detail else ''}; and let "
        "the process fail with its threads, so that the launcher stops the others",
        "D20",
    )


def unreadable(whose: str) -> Advice:
    """Ranks whose dumps are there, but not for us."""
    return Advice(
        f"make what {whose} left readable (copy it whole, with the right to read it) and analyse "
        "again: it tells where that rank stood",
        "D20",
    )


def stuck(rest: str) -> Advice:
    """All have come and nobody finishes; ``rest`` is what this says of the job's code."""
    what = "check the network and the devices of the members (NCCL_DEBUG=INFO, Xid and link errors)"
    return Advice(what + rest, "D19")


def by_verdict(verdict: Verdict, detail: str = "") -> Advice:
    """The remaining kinds."""
    fixed = {
        Verdict.RANK_CRASHED: Advice(
            f"fix the first error of that rank{_at(detail)}{SYMPTOM}",
            "D20",
        ),
        Verdict.RANK_EXITED: fewer_steps(", or keep the rank until all have finished"),
        Verdict.RANK_LOST: Advice(
            f"look for that rank's process and host{' ' + detail if detail else ''}: scheduler and "
            "kernel log, and its dump if it wrote one",
            "D20",
        ),
        Verdict.DEADLOCK_CYCLE: Advice(
            "use the groups, sends and receives in one order on all ranks", "D19, D21"
        ),
        Verdict.P2P_UNMATCHED: Advice(
            "issue the matching send or recv, in the order in which the partner issues its halves",
            "D19",
        ),
        Verdict.STUCK_COLLECTIVE: stuck("; code is not the cause"),
        Verdict.INCONCLUSIVE: Advice(
            "collect the dumps or logs of the other ranks; where there are none, run it again with "
            "HANGSCOPE=1",
            "D19",
        ),
        Verdict.QUIESCENT: Advice(
            "nothing waits in a collective: look at what the ranks do outside (stacks, I/O, "
            "evaluation on one rank)",
            "D23",
        ),
        Verdict.HEALTHY: Advice("", ""),
    }
    return fixed[verdict]
