"""The fix for each kind of finding in one sentence, with its hang class (D1-D23)."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.processes.process_state import CHECKPOINT, LOADER, ProcessState
from hangscope.diagnosis.processes.stacks import innermost, is_over, where
from hangscope.diagnosis.wording.blocked import blocked_in, frame_names

_WORKS = ("busy", "running")
SYMPTOM = "; the hang of the others is its symptom"


@dataclass(frozen=True, slots=True)
class Advice:
    """``fix`` is one sentence without a final full stop, ``playbook`` like ``"D9, D22"``."""

    fix: str
    playbook: str


def place_of(process: ProcessState | None, address: str) -> str:
    """``data.py:41 in load_batch on host node0 (pid 4711)``, as far as known."""
    frame = innermost(process.stack) if process is not None else None
    return " ".join(x for x in (where(frame), address) if x)


def _at(detail: str) -> str:
    """A line after a colon, a host without a line after a comma; empty for nothing."""
    return "" if not detail else f"{', ' if detail.startswith('on host') else ': '}{detail}"


def handling(rank: str, error: str) -> Advice:
    """``rank`` reached a collective in an ``except`` or ``finally`` clause, and nobody else did."""
    return Advice(
        f"fix what raised {error}: {rank} alone was handling that; what runs in `except`, "
        "`finally` or `__exit__` must not wait for the others",
        "D20, D19",
    )


def fewer_steps(more: str = "") -> Advice:
    """A rank that finished its program, or its loop, before the others."""
    return Advice(
        "equalise the number of batches over ranks (sampler and drop_last), or wrap the loop in "
        f"Join{more}; if they are equal already, look for a step that it skipped (`continue`, a "
        "NaN check, a caught exception) or a loop that it left early (early stopping, a time "
        "limit): all ranks must decide that together",
        "D9, D22",
    )


def left_its_own_behind(rank: str) -> Advice:
    """``rank`` had issued the operation the others are in, and left before it was done."""
    return Advice(
        f"let {rank} wait for what it has issued before it exits: work.wait() on asynchronous "
        "operations, destroy_process_group or a barrier at the end; os._exit waits for nothing",
        "D20, D9",
    )


def data_ended(rank: str) -> Advice:
    """``rank`` reached a collective because its iterator was exhausted."""
    return Advice(
        f"the data of {rank} ended before that of the others: equalise the number of batches over "
        "ranks (sampler and drop_last), or wrap the loop in Join",
        "D9, D22",
    )


def release_lock(line: str) -> Advice:
    """A rank that holds a file lock while it waits for ranks that want it."""
    return Advice(
        f"release that lock before {line or 'the collective'}: nothing that needs the other ranks "
        "may run under a lock that they need to get there",
        "D19, D23",
    )


def lock_to_release(where_it_is: str) -> Advice:
    """A rank that does something else while it holds a lock others wait for."""
    look = f"look at {where_it_is}" if where_it_is else "look at what runs there instead"
    return Advice(f"{look}: the others cannot go on until it releases that lock", "D19, D23")


def locks_in_order() -> Advice:
    """Ranks that each hold a lock and want the other's."""
    return Advice("take these locks in the same order on all ranks, or use one lock", "D19, D23")


def key_to_set(where_it_is: str) -> Advice:
    """Ranks that wait in the store for a key that another rank should have set."""
    look = f"look at {where_it_is}" if where_it_is else "look at what runs there instead"
    return Advice(
        f"{look}: it has to set that key, under exactly that name, before it goes on to anything "
        "that needs the others",
        "D19, D21",
    )


def missing(
    process: ProcessState | None = None,
    address: str = "",
    *,
    first: bool = False,
    finalized: bool = False,
) -> Advice:
    """A live rank that did not arrive; ``address`` is what `phrases.address` says about it.

    ``first``: the others still wait for it to reach ``init_process_group``; ``finalized``: it has
    destroyed its groups.
    """
    if process is not None and process.state == "stopped":
        return _stopped(process, address)
    stack = process.stack if process is not None else ()
    look = f"look at {place_of(process, address)}"
    if not stack:
        look = "look at what runs there instead" + _at(address).removeprefix(",")
    inside = blocked_in(process)
    if inside:
        look += f": {inside}"
    if process is not None and process.state == "gil-held":
        return Advice(
            f"{look}{';' if inside else ':'} C code holds the GIL there, so nothing else of this "
            "process can run",
            "D19",
        )
    if finalized or (process is not None and process.phase == "destroy_process_group"):
        return fewer_steps()
    if is_over(stack):
        more = fewer_steps()
        return Advice(f"{look}; {more.fix}", more.playbook)
    if first:
        if process is not None and process.is_observed and not (process.gone or stack):
            look += ": py-spy dump shows it even before torch is imported"
        return Advice(
            f"{look}; check RANK, WORLD_SIZE and MASTER_ADDR of that process and what runs before "
            "init_process_group",
            "D1, D2",
        )
    return _by_names(process, look, blocked=bool(inside))


def recorded_elsewhere() -> Advice:
    """Ranks are missing from a job that HangScope records: their rings are elsewhere."""
    return Advice(
        "analyse the run directories of the other ranks together with this one: a rank on another "
        "node, with another MASTER_PORT, HANGSCOPE_DIR or working directory has one of its own",
        "D19",
    )


def never_seen(address: str) -> Advice:
    """A rank of a running job that has left nothing, while others wait in ``init_process_group``.

    Where no launcher's environment numbers the ranks, they are recorded only from there on.
    """
    return Advice(
        f"look for that rank's process{' ' + address if address else ''}: if it runs, py-spy dump "
        "shows what keeps it from init_process_group; if not, see the launcher's, scheduler's and "
        "kernel log",
        "D1, D20",
    )


def _stopped(process: ProcessState, address: str) -> Advice:
    """A process that does not run, dead or alive."""
    if process.gone:
        fix = f"find out what had stopped the process ({process.held_by or 'SIGSTOP'})"
    elif process.held_by:
        fix = f"let the process go on: {process.held_by} holds it"
    else:
        fix = "resume the stopped process (kill -CONT)"
    return Advice(f"{fix}, {address}".rstrip(", "), "D19")


def _by_names(process: ProcessState | None, look: str, *, blocked: bool) -> Advice:
    """A rank that runs something else, which its function names identify.

    ``look``: where to look; ``blocked``: that text says what the rank waits for.
    """
    names = frame_names(process)
    phase = process.phase if process is not None else None
    if CHECKPOINT.search(phase or "") or CHECKPOINT.search(names):
        return Advice(
            f"{look}; a checkpoint written by one rank must not outlast the timeout of the others",
            "D23, D21",
        )
    loads = LOADER.search(names) is not None
    if not blocked and process is not None and (process.state in _WORKS or process.wakes):
        return Advice(
            f"{look}; if that is just slow, raise the timeouts (of init_process_group, and "
            "HANGSCOPE_TIMEOUT)",
            "D22" if loads else "D19",
        )
    if loads and not blocked:
        return Advice(f"{look}; if loaders differ in length, equalise them or use Join", "D9, D22")
    must = "" if blocked else "; every rank must reach the operation that the others wait in"
    return Advice(look + must, "D19")


def dead_thread(name: str, detail: str) -> Advice:
    """A rank that exited with status 0 although one of its threads had failed."""
    return Advice(
        f"fix what ended that rank's thread {name}{': ' + detail if detail else ''}; and let the "
        "process fail with its threads, so that the launcher stops the others",
        "D20",
    )


def unreadable(whose: str, *, unknown_form: bool) -> Advice:
    """Ranks whose dumps exist but cannot be read: damaged, or of a kind nobody has described."""
    if unknown_form:
        return Advice(
            f"read the files of {whose} by hand, or record with HANGSCOPE=1 or torch's own Flight "
            "Recorder: HangScope does not know the form of their entries",
            "D20",
        )
    return Advice(
        f"make the files of {whose} readable (copy them whole, with read permission) and analyse "
        "again: they show where that rank was",
        "D20",
    )


def stuck(rest: str) -> Advice:
    """All have arrived and nobody finishes; ``rest``: what this implies for the job's code."""
    what = "check the network and the devices of the members (NCCL_DEBUG=INFO, Xid and link errors)"
    return Advice(what + rest, "D19")


def held_device(whose: str, line: str) -> Advice:
    """A device that has not started what the others have; ``line``: where it was issued."""
    before = f" before {line}" if line else ""
    return Advice(
        f"look at what the device of {whose} runs (nvidia-smi, cuda-gdb, Xid errors in the kernel "
        f"log), and at what its code gives the device{before} that nobody else's does",
        "D19",
    )


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
            "use the groups, sends and receives in the same order on all ranks", "D19, D21"
        ),
        Verdict.P2P_UNMATCHED: Advice(
            "issue the matching send or recv, in the order in which the partner issues its halves",
            "D19",
        ),
        Verdict.STUCK_COLLECTIVE: stuck("; where the ranks stand (py-spy dump) tells more"),
        Verdict.INCONCLUSIVE: Advice(
            "collect the dumps or logs of the other ranks; if there are none, run it again with "
            "HANGSCOPE=1",
            "D19",
        ),
        Verdict.QUIESCENT: Advice(
            "no rank waits in a collective: look at what the ranks do outside (stacks, I/O, "
            "evaluation on one rank)",
            "D23",
        ),
        Verdict.HEALTHY: Advice("", ""),
    }
    return fixed[verdict]
