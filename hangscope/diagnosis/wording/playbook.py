"""What to do: one table of sentences, keyed by verdict or by what the evidence shows, with the hang
classes (D1-D23) of each.

`advice` and `rank_advice` choose among them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.diagnosis.model import Verdict


@dataclass(frozen=True, slots=True)
class Advice:
    """``fix`` is one sentence without a final full stop, ``playbook`` like ``"D9, D22"``."""

    fix: str
    playbook: str


_GUARD = (
    "run the collective on every rank, or on none, and guard only its side effect with "
    "`if rank == 0`"
)
_FEWER = (
    "equalise the number of batches over ranks (sampler and drop_last), or wrap the loop in "
    "Join; if they are equal already, look for a step that it skipped (`continue`, a NaN "
    "check, a caught exception) or a loop that it left early (early stopping, a time limit): all "
    "ranks must decide that together"
)
_SLOW = (
    "{look}; if that is just slow, raise the timeouts (of init_process_group, and "
    "HANGSCOPE_TIMEOUT)"
)
_SAYINGS: dict[str, tuple[str, str]] = {
    # Members that issued incompatible operations, by the aspect of the `Mismatch`.
    "op": ("make every member issue the same operations in the same order", "D19, D21"),
    "guarded": (_GUARD + "{held}", "D21, D19"),
    "numel": (
        "give every member tensors of the same size: pad the last batch, or gather the sizes first",
        "D19, D22",
    ),
    "dtype": (
        "cast to one dtype before the collective; under FSDP set param, reduce and buffer dtypes "
        "alike on every rank",
        "D14, D19",
    ),
    "device": (
        "move the tensors to the same device on every member: a group with a backend for each "
        "(cpu:gloo,cuda:nccl) silently accepts either",
        "D19",
    ),
    "history": (
        "record more (HANGSCOPE_BUFFER) and run again: the first difference has been overwritten",
        "D19",
    ),
    "root": (
        "pass the same src or dst on every member: it is a global rank, even in a subgroup "
        "(dist.get_global_rank, or group_src and group_dst)",
        "D19",
    ),
    "reduce_op": ("pass the same reduce operation on every member", "D19"),
    # Ranks at different lines, or in different orders.
    "out of step": (  # the ranks are at a line where the others have been before
        "all ranks run that line: look for what made {ranks} repeat or skip an operation (a caught "
        "exception, a retry, `continue`, a different number of steps)",
        "D19, D20",
    ),
    "left out": (
        "look for what made {ranks} skip or postpone {title} (a branch, a caught exception, "
        "`continue`): all ranks must use the groups, and issue their sends and receives, in the "
        "same order",
        "D19, D21",
    ),
    "left a block": (  # the ranks are in the `__exit__` of a block that the others are inside
        "look for an exception that ended the `with` block on {ranks} alone: what runs when a "
        "block ends must not wait for the others",
        "D20, D19",
    ),
    "one of many": (  # a line that issues a different size each time, like a loop over parameters
        "that line passes a different size each time: look for what {ranks} skipped, repeated or "
        "took in a different order there (a missing key, a skipped layer, a layer or buffer that "
        "depends on train or eval mode, iteration over a set)",
        "D19, D8",
    ),
    "finalizer": (
        "move the collective out of __del__: Python frees objects at different moments on each "
        "rank; close them explicitly, on all ranks in the same step",
        "D19, D21",
    ),
    "guarded or early": (  # the ranks are at a line that is new to all
        f"{_GUARD}; if it comes after a loop, {{ranks}} left that loop early or skipped a step "
        "(`continue`, a caught exception): let all ranks decide that together",
        "D21, D19, D9",
    ),
    "inside one call": (  # all ranks are in one call, below which only installed packages differ
        "all ranks are inside {line}, and none of the program's own lines issues that: what is "
        "decided in there on {ranks} alone (early stopping, a limit of batches or time, an "
        "evaluation or a checkpoint that is due) must be decided by all ranks together",
        "D9, D21",
    ),
    "crossed handles": (  # one line, with another group of the same members on each rank
        "{line} uses a different group on one side, with the same members: create the groups in "
        "the same order on every rank (dist.new_group and init_process_group tell them apart by "
        "their order); if that is so already, take them in the same order at that line",
        "D19",
    ),
    "splits": (
        "exchange the split sizes first (an all_to_all of the counts): what one member sends to "
        "another must be what that one expects from it",
        "D19",
    ),
    "names": ("check the {what} that {named}", "D19"),
    "same half first": (
        "every rank of the cycle waits in {verb} before it does its other half: let some of them "
        "start with the other half, or issue both at once (isend and irecv, batch_isend_irecv); if "
        "that order is a pipeline's schedule, compare the stages and micro-batches of these ranks",
        "D19",
    ),
    "new groups": (
        "call new_group for every group on every rank and in the same order, even on ranks that "
        "are not members of it",
        "D19, D21",
    ),
    "leave together": (
        "a signal or an exception reaches one rank only: let it set a flag, all-reduce the flag "
        "in every step, and save or exit on all ranks in the same step",
        "D21, D19",
    ),
    "two threads": (
        "two threads issue operations in this group, so their order differs from rank to rank: "
        "give the thread a group of its own (dist.new_group), or await each operation before the "
        "next is submitted",
        "D19",
    ),
    "communication hook": (
        "a DDP communication hook issues it: register the same hook with the same settings "
        "(approximation rank, start step, groups) on every rank, and in the same step",
        "D8, D19",
    ),
    "inside join": (
        "ranks that are done wait at the end of `with Join`, and take part only in the collectives "
        "of what was passed to it: move every other collective (metrics, barriers) out of that "
        "block, or wrap what issues it in a Joinable",
        "D9, D19",
    ),
    "buckets": (  # gradient buckets of different sizes, or one that a rank never reduced
        "use the same parameters on every rank in every step: a branch that one rank skips, a loss "
        "without some output, or no_sync() on one rank leaves gradient buckets out "
        "(find_unused_parameters=True only if a branch is skipped on purpose){at}",
        "D8, D19",
    ),
    Verdict.DEADLOCK_CYCLE: (
        "use the groups, sends and receives in the same order on all ranks",
        "D19, D21",
    ),
    Verdict.P2P_UNMATCHED: (
        "issue the matching send or recv, in the order in which the partner issues its halves",
        "D19",
    ),
    # Ranks that are not where they should be.
    "handling": (  # the rank came there in an `except` or `finally` clause, and nobody else did
        "fix what raised {error}: {rank} alone was handling that; what runs in `except`, "
        "`finally` or `__exit__` must not wait for the others",
        "D20, D19",
    ),
    "fewer steps": (_FEWER, "D9, D22"),
    Verdict.RANK_EXITED: (_FEWER + "; or keep the rank until all have finished", "D9, D22"),
    "left its own behind": (
        "let {rank} wait for what it has issued before it exits: work.wait() on asynchronous "
        "operations, destroy_process_group or a barrier at the end; os._exit waits for nothing",
        "D20, D9",
    ),
    "data ended": (
        "the data of {rank} ended before that of the others: " + _FEWER,
        "D9, D22",
    ),
    "release the lock": (
        "release that lock before {line}: nothing that needs the other ranks may run under a lock "
        "that they need to get there",
        "D19, D23",
    ),
    "holds a lock": ("{look}: the others cannot go on until it releases that lock", "D19, D23"),
    "locks": ("take these locks in the same order on all ranks, or use one lock", "D19, D23"),
    "key to set": (
        "{look}: it has to set that key, under exactly that name, before it goes on to anything "
        "that needs the others",
        "D19, D21",
    ),
    "recorded elsewhere": (
        "analyse the run directories of the other ranks together with this one: a rank on another "
        "node, with another MASTER_PORT, HANGSCOPE_DIR or working directory has one of its own",
        "D19",
    ),
    "never seen": (  # where no launcher numbers the ranks, they are recorded from there on
        "look for that rank's process{at}: if it runs, py-spy dump shows what keeps it from "
        "init_process_group; if not, see the launcher's, scheduler's and kernel log",
        "D1, D20",
    ),
    "stopped": ("resume the stopped process (kill -CONT){on}", "D19"),
    "held": ("let the process go on: {by} holds it{on}", "D19"),
    "was stopped": ("find out what had stopped the process ({by}){on}", "D19"),
    "holds the GIL": (
        "{look}{then} C code holds the GIL there, so nothing else of this process can run",
        "D19",
    ),
    "over": ("{look}; " + _FEWER, "D9, D22"),
    "not begun": (
        "{look}{dump}; check RANK, WORLD_SIZE and MASTER_ADDR of that process and what runs before "
        "init_process_group",
        "D1, D2",
    ),
    "checkpoint": (
        "{look}; a checkpoint written by one rank must not outlast the timeout of the others",
        "D23, D21",
    ),
    "slow": (_SLOW, "D19"),
    "slow data": (_SLOW, "D22"),
    "data": ("{look}; if loaders differ in length, equalise them or use Join", "D9, D22"),
    "blocked": ("{look}", "D19"),
    "elsewhere": ("{look}; every rank must reach the operation that the others wait in", "D19"),
    "dead thread": (
        "fix what ended that rank's thread {name}{at}; and let the process fail with its threads, "
        "so that the launcher stops the others",
        "D20",
    ),
    "unknown form": (
        "read the files of {ranks} by hand, or record with HANGSCOPE=1 or torch's own Flight "
        "Recorder: HangScope does not know the form of their entries",
        "D20",
    ),
    "unreadable": (
        "make the files of {ranks} readable (copy them whole, with read permission) and analyse "
        "again: they show where that rank was",
        "D20",
    ),
    Verdict.STUCK_COLLECTIVE: (
        "check the network and the devices of the members (NCCL_DEBUG=INFO, Xid and link errors)"
        "{rest}; where the ranks stand (py-spy dump) tells more",
        "D19",
    ),
    "held device": (
        "look at what the device of {ranks} runs (nvidia-smi, cuda-gdb, Xid errors in the kernel "
        "log), and at what its code gives the device{before} that nobody else's does",
        "D19",
    ),
    "twice": (
        "give every process a RANK of its own: two processes say that they are {ranks}",
        "D1, D4",
    ),
    # Ends: `error` and `symptom` are empty, or others, if no rank is left to hang.
    Verdict.RANK_CRASHED: ("fix {error}{at}{symptom}", "D20"),
    "way out": (
        "that rank had left its program while the others still needed it: look for what ended it "
        "(SystemExit, the end of its data){at}; and call destroy_process_group before a process "
        "ends",
        "D20, D9",
    ),
    "exited there": (
        "find out why that rank exited{at}: the last lines of its log may say; let all ranks "
        "decide together to stop{symptom}",
        "D20",
    ),
    "late abort": (
        "its program was over: look for threads that still run during interpreter shutdown (of a "
        "data loader, a background checkpoint, torch itself){destroy}{at}",
        "D20",
    ),
    "typed": (
        "remove the breakpoint or the prompt: under a launcher nobody can type an answer{at}",
        "D19, D20",
    ),
    "ready twice": (
        "use every parameter once per backward pass, or set static_graph=True{at}",
        "D8, D20",
    ),
    "models": (
        "build the same model on every rank, with the same number and sizes of parameters{at}",
        "D19, D20",
    ),
    "replicas": (
        "compare the replicas (hangscope.sync_parameters) and look for what a rank skips in a "
        "step{at}",
        "D10, D20",
    ),
    "one device": (
        "give every process a device of its own: torch.cuda.set_device(LOCAL_RANK) before anything "
        "else{at}",
        "D3",
    ),
    "memory": (
        "that rank ran out of memory: cap its longest batch or shard further{symptom}{at}",
        "D20, D7",
    ),
    "not finite": (
        "that rank's numbers are not finite: look at its batch of that step, its learning rate and "
        "its inputs; let all ranks decide together to skip a step or to stop{at}",
        "D20",
    ),
    "loader died": (
        "a data loader worker of that rank died: look at its memory and shared memory "
        "(/dev/shm){at}",
        "D20, D22",
    ),
    "index": (
        "nearly always the program's own fault, such as an index out of range (a token or label id "
        "beyond the table's size): run that rank with CUDA_LAUNCH_BLOCKING=1, which shows the "
        "line, and check what it indexes with{at}",
        "D20",
    ),
    "device failed": (
        "the device of that rank failed: take its host out of service and check the kernel log "
        "(Xid){at}",
        "D20",
    ),
    "device or program": (
        "find out whether the program or the device failed: the kernel log of that host (Xid) "
        "shows a failed device; CUDA_LAUNCH_BLOCKING=1 shows the line of the program{at}",
        "D20",
    ),
    "no launcher": (
        "launch it with torchrun, or give every rank RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT{at}",
        "D1",
    ),
    "port": ("give every job a port of its own, or --rdzv-endpoint=localhost:0{at}", "D4"),
    "unheard": (
        "find out what happened to that rank{at}: whether the host is up and reachable, and what "
        "its kernel log and the scheduler say{symptom}",
        "D20",
    ),
    "killed": (
        "find out who killed that rank{at}: dmesg there shows whether memory ran out, the "
        "scheduler's log whether a limit was reached{symptom}",
        "D20",
    ),
    "told": (
        "find out who stopped that rank{at}: the scheduler (preemption, time limit), a script "
        "around the job, or somebody by hand{symptom}",
        "D20",
    ),
    "native": (
        "look for that rank's native stack{at}: a core dump, or the last lines of its log with "
        "PYTHONFAULTHANDLER=1{symptom}",
        "D20",
    ),
    "status": (
        "read the last lines of that rank's log{at}: it ended by itself and nothing on record says "
        "why{symptom}",
        "D20",
    ),
    # Nobody.
    Verdict.RANK_LOST: (
        "look for that rank's process and host{at}: scheduler and kernel log, and its dump if it "
        "wrote one",
        "D20",
    ),
    Verdict.INCONCLUSIVE: (
        "collect the dumps or logs of the other ranks; if there are none, run it again with "
        "HANGSCOPE=1",
        "D19",
    ),
    Verdict.QUIESCENT: (
        "no rank waits in a collective: look at what the ranks do outside (stacks, I/O, "
        "evaluation on one rank)",
        "D23",
    ),
}
"""Per verdict, or per key for what narrows it down: the sentence, with names in braces for what a
case tells, and its hang classes."""


class _Told(dict[str, str]):
    """What a case tells; nothing for what it does not."""

    def __missing__(self, key: str) -> str:
        return ""


def say(key: str, **told: str) -> Advice:
    """The advice of a verdict or key, with what the case tells in its place."""
    fix, classes = _SAYINGS[key]
    return Advice(fix.format_map(_Told(told)), classes)
