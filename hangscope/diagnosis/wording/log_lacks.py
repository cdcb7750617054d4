"""What a log lacks to name a rank: whose log or stack it takes, and which variable to set."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import Finding
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace.model import Claim

_MOST_NAMED = 16
_RECORDER = "TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.8)"
_IS_OFF = re.compile(r"FlightRecorder is disabled", re.I)
_GLOO = re.compile(r"gloo|monitoredBarrier", re.I)
_HCCL = re.compile(r"\bE[A-Z]\d{4}: |HCCL|Hccl")
_JAX = re.compile(r"DEADLINE_EXCEEDED|/job:\w+/")


def what_to_collect(context: Context, finding: Finding) -> str:
    """Whose log is missing, and what would tell more next time."""
    claims = context.trace.claims
    waiting = {rank for side in finding.sides for rank in side.ranks}
    waiting |= {c.reporter for c in claims if c.kind == "timeout" and c.reporter is not None}
    silent = sorted(context.known_ranks - waiting)
    todo = [*_of_failures(claims)]
    if not waiting:  # else they got stuck in giving up
        todo += _of_watchdogs(claims)
    if waiting or any(c.kind in ("timeout", "dump_signal") for c in claims):
        group = "the other members of the group"
        whose = rank_s(silent) if 0 < len(silent) <= _MOST_NAMED and waiting else group
        todo.append(f"look at the logs of {whose} (each node's own): who printed nothing of this")
    if any(c.details.get("announced_last") for c in claims):
        todo.append(
            "give the same lines of every rank to hangscope analyze (each may have a file of its "
            "own): the one that announces least is behind"
        )
    if any(c.details.get("stands") for c in claims):
        todo.append("take py-spy dump of every rank: its Python lines say which call that is of")
    return "; ".join([*todo[:2], _next_time(context, claims)])


def _of_failures(claims: tuple[Claim, ...]) -> Iterator[str]:
    """What says why a process or a connection failed."""
    kinds = {c.kind for c in claims}
    if "launcher_failure" in kinds:
        yield (
            "look at what the process that ended wrote itself (torchrun --log-dir keeps a file for "
            "each; @record of torch.distributed.elastic puts its traceback into the table), and "
            "at dmesg of its node"
        )
    if any(c.details.get("store_gone") for c in claims):
        yield "look at the log of rank 0 and of its launcher: why the process with the store ended"
    elif "network_error" in kinds and not any(_HCCL.search(c.text) for c in claims):
        by = sorted({c.reporter for c in claims if c.kind == "network_error" and c.reporter})
        whose = f" of {rank_s(by)}" if 0 < len(by) <= _MOST_NAMED else ""
        yield (
            "look at the log of the rank at the other end: it ended first, or its link is down; "
            f"NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,NET names the peers{whose} and their "
            "addresses"
        )


def _of_watchdogs(claims: tuple[Claim, ...]) -> Iterator[str]:
    """What says why a watchdog itself stood still."""
    stuck = [c for c in claims if c.details.get("watchdog_stuck")]
    if stuck:
        by = sorted({c.reporter for c in stuck if c.reporter is not None})
        whose = rank_s(by) if 0 < len(by) <= _MOST_NAMED else "the process"
        yield (
            f"take py-spy dump --native of {whose} while it stands: its watchdog is held by a CUDA "
            "call or by whoever holds the GIL"
        )


def _next_time(context: Context, claims: tuple[Claim, ...]) -> str:
    """Which variable makes the next log tell more."""
    told = " ".join(c.text for c in claims)
    backends = {signature.backend for signature in context.trace.signatures}
    says_at_once = "HANGSCOPE=1 says it at once"
    if "hccl" in backends or _HCCL.search(told):
        return (
            "ASCEND_GLOBAL_LOG_LEVEL=1 makes HCCL write to every rank's plog whom it waits for, "
            f"and {says_at_once}"
        )
    if _GLOO.search(told) and "nccl" not in backends:
        return f"Gloo keeps no record of its operations: {says_at_once}"
    if _JAX.search(told):
        return "the logs of the tasks that did not come say what they did instead"
    off = " (this log says that it is off)" if _IS_OFF.search(told) else ""
    return (
        f"{_RECORDER}{off} and TORCH_NCCL_DUMP_ON_TIMEOUT=1 make every rank write what it was in "
        f"at the next timeout, and {says_at_once}"
    )
