"""What to do about a rank that ended, by its error or by how it ended without one."""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.diagnosis.exits.vanished_hosts import UNHEARD
from hangscope.diagnosis.model import Verdict
from hangscope.diagnosis.wording.playbook import SYMPTOM, Advice, by_verdict
from hangscope.trace.model import ON_ITS_WAY_OUT

_OF_ERRORS = (
    (
        r"\bBdbQuit\b|EOF when reading a line",
        "remove the breakpoint or the prompt: under a launcher nobody can type an answer",
        "D19, D20",
    ),
    (
        r"finished reduction in the prior iteration|did not receive grad",
        "use every output in the loss on every rank; find_unused_parameters=True only if a branch "
        "is skipped on purpose",
        "D8, D20",
    ),
    (
        r"marked as ready twice|mark a variable ready only once",
        "use every parameter once per backward pass, or set static_graph=True",
        "D8, D20",
    ),
    (
        r"sizes of the same param in process|expects same model across all ranks",
        "build the same model on every rank, with the same number and sizes of parameters",
        "D19, D20",
    ),
    (
        r"inconsistent between workers",
        "compare the replicas (hangscope.sync_parameters) and look for what a rank skips in a step",
        "D10, D20",
    ),
    (
        r"duplicate gpu",
        "give every process a device of its own: torch.cuda.set_device(LOCAL_RANK) before anything "
        "else",
        "D3",
    ),
    (
        r"out of memory|\boom\b|killed for memory|(cannot|can't) allocate memory|bad_alloc",
        f"that rank ran out of memory: cap its longest batch or shard further{SYMPTOM}",
        "D20, D7",
    ),
    (
        r"\b(?:nan|inf)\b|loss scale|checkfornan",
        "that rank's numbers are not finite: look at its batch of that step, its learning rate and "
        "its inputs; let all ranks decide together to skip a step or to stop",
        "D20",
    ),
    (
        r"dataloader worker \(pid",
        "a data loader worker of that rank died: look at its memory and shared memory (/dev/shm)",
        "D20, D22",
    ),
    (
        r"device-side assert|illegal (?:memory access|address|instruction)|misaligned address|"
        r"xid[^:]*: (?:13|31|43)\b|memory access fault by gpu",
        "nearly always the program's own fault, such as an index out of range (a token or label id "
        "beyond the table's size): run that rank with CUDA_LAUNCH_BLOCKING=1, which shows the "
        "line, and check what it indexes with",
        "D20",
    ),
    (
        r"\becc\b|nvlink|fallen off the bus|device_lost|gpu hang|"
        r"xid[^:]*: (?:48|63|64|74|79|94|95)\b",
        "the device of that rank failed: take its host out of service and check the kernel log "
        "(Xid)",
        "D20",
    ),
    (
        r"(?:cuda|hip) error|cuda failure|gpu node|xid",
        "find out whether the program or the device failed: the kernel log of that host (Xid) "
        "shows a failed device; CUDA_LAUNCH_BLOCKING=1 shows the line of the program",
        "D20",
    ),
    (
        r"environment variable \w+ expected, but not set",
        "launch it with torchrun, or give every rank RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        "D1",
    ),
    (
        r"address already in use",
        "give every job a port of its own, or --rdzv-endpoint=localhost:0",
        "D4",
    ),
)
_CRASHES = [(re.compile(text, re.I), fix, classes) for text, fix, classes in _OF_ERRORS]
_ENDS_WITHOUT_A_WORD = (
    (
        re.escape(UNHEARD),
        "find out what happened to that rank",
        "whether the host is up and reachable, and what its kernel log and the scheduler say",
    ),
    (
        r"killed by SIGKILL",
        "find out who killed that rank",
        "dmesg there shows whether memory ran out, the scheduler's log whether a limit was reached",
    ),
    (
        r"killed by SIG(TERM|INT|HUP)",
        "find out who stopped that rank",
        "the scheduler (preemption, time limit), a script around the job, or somebody by hand",
    ),
    (
        r"killed by SIG(SEGV|BUS|ILL|FPE|ABRT)",
        "look for that rank's native stack",
        "a core dump, or the last lines of its log with PYTHONFAULTHANDLER=1",
    ),
    (
        r"exit status \d+\s*$",
        "read the last lines of that rank's log",
        "it ended by itself and nothing on record says why",
    ),
)
"""Ends without an error to fix: (how the rank ended, what to look for, where)."""


def aborted_at_its_end(detail: str, *, destroyed: bool) -> Advice:
    """A rank that aborted after its program was over, with nobody known to have waited for it.

    ``destroyed``: it had destroyed its groups.
    """
    destroy = "" if destroyed else ", and call destroy_process_group before a process ends"
    return Advice(
        "its program was over: look for threads that still run during interpreter shutdown (of a "
        f"data loader, a background checkpoint, torch itself){destroy}: {detail}",
        "D20",
    )


def left_at(detail: str) -> Advice:
    """A rank that exited by itself with a status and without a known reason."""
    return Advice(
        f"find out why that rank exited at {detail}: the last lines of its log may say; let all "
        f"ranks decide together to stop{SYMPTOM}",
        "D20",
    )


def crash(text: str, detail: str) -> Advice:
    """A rank that ended with an error; ``text`` is the error, ``detail`` where it happened."""
    if ON_ITS_WAY_OUT in text:
        return Advice(
            "that rank had left its program while the others still needed it: look for what ended "
            f"it (SystemExit, the end of its data){': ' + detail if detail else ''}; and call "
            "destroy_process_group before a process ends",
            "D20, D9",
        )
    for pattern, fix, classes in _CRASHES:
        if pattern.search(text):
            return Advice(f"{fix} ({detail})" if detail else fix, classes)
    for how, look, where_to in _ENDS_WITHOUT_A_WORD:
        if re.match(how, text):
            at = f", {detail}" if detail else ""
            return Advice(f"{look}{at}: {where_to}{SYMPTOM}", "D20")
    return by_verdict(Verdict.RANK_CRASHED, detail)


def crash_of_all(advice: Advice) -> Advice:
    """The same if nobody is left who could wait for the ended ranks."""
    fix = advice.fix.replace(SYMPTOM, "").replace("the first error of that rank", "that error")
    return replace(advice, fix=fix)
