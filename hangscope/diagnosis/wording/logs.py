"""What logs add to findings: words of unknown ranks, what began as the waiting began, on which
hosts, for how long at most, and what is lacking to name a rank.

An exception without a rank, or a process killed for memory, accuses nobody. But if ranks wait for
others that left no message, whose it was is the next thing to find out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.duration_text import lasting
from hangscope.diagnosis.model import Finding, Verdict
from hangscope.diagnosis.observability import is_text_alone
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.diagnosis.wording.playbook import Advice, say
from hangscope.diagnosis.wording.stack_summary import elsewhere
from hangscope.trace.model import Claim

_FAILED = frozenset({"oom", "device_error", "launcher_failure"})
_HARDWARE = frozenset({"network_error", "device_error"})
_GAVE_UP = frozenset({"timeout", "dump_signal", "monitored_barrier", "barrier_timeout"})
_ABSENT = (Verdict.RANK_LOST, Verdict.MISSING_RANK)
_WAITS = (
    *_ABSENT, Verdict.STUCK_COLLECTIVE, Verdict.INCONCLUSIVE, Verdict.COLLECTIVE_MISMATCH,
    Verdict.SHAPE_MISMATCH,
)  # fmt: skip
_MOST = 4
_MOST_NAMED = 16
_TIMEOUT_MS = re.compile(
    r"(?:Timeout\(ms\)=|Timed out waiting |monitoredBarrier (?:in|after) |wait timeout after )"
    r"(\d{3,12})"
)
_IS_OFF = re.compile(r"FlightRecorder is disabled", re.I)
_GLOO = re.compile(r"gloo|monitoredBarrier", re.I)
_HCCL = re.compile(r"\bE[A-Z]\d{4}: |HCCL|Hccl")
_JAX = re.compile(r"DEADLINE_EXCEEDED|/job:\w+/|coordination service")
_NCCL = re.compile("NCCL|nccl")
_STORE = re.compile(r"rendezvous|socket|store|clients", re.I)


def with_logs(context: Context, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings, with what else the logs tell a reader."""
    claims = context.trace.claims
    stray = [c for c in claims if c.details.unattributed or (c.kind in _FAILED and not c.accused)]
    texts = _up_to_first_timeout(context, stray)
    if any(f.verdict in _ABSENT for f in findings):
        texts += elsewhere(context)[:_MOST]
    broken = [c for c in claims if c.kind in _HARDWARE and not c.details.after_timeout]
    troubles = _up_to_first_timeout(context, broken)
    return tuple(_told(context, finding, texts, troubles) for finding in findings)


def _up_to_first_timeout(context: Context, found: list[Claim]) -> list[str]:
    """The texts of statements, with their files; what comes later is a consequence."""
    claims, sources = context.trace.claims, context.trace.sources
    gave_up = min((c.at_ns for c in claims if c.kind in _GAVE_UP and c.at_ns), default=0)
    texts = {}
    for claim in found:
        file = sources[claim.source].path if 0 <= claim.source < len(sources) else ""
        name = file.replace("\\", "/").rpartition("/")[2]
        if not (gave_up and claim.at_ns > gave_up):
            where = f" [{name}]" if name and len(sources) > 1 else ""
            texts[claim.text] = shortened(claim.text.strip()) + where
    return list(dict.fromkeys(texts.values()))[:_MOST]


def _told(context: Context, finding: Finding, stray: list[str], troubles: list[str]) -> Finding:
    evidence, fix = finding.evidence, finding.fix

    def new(texts: list[str]) -> list[str]:
        return [text for text in texts if not any(text in line for line in finding.evidence)]

    if stray and _is_open(context, finding):
        evidence = (*(f"log, of an unknown rank: {text}" for text in new(stray)), *evidence)
        if finding.culprits:
            fix += f"; check whether this is about {rank_s(finding.culprits)}: {stray[0]}"
        else:
            fix = f"find out which rank this is about: {stray[0]}; then, {fix}"
    if troubles and finding.verdict is Verdict.STUCK_COLLECTIVE and not finding.culprits:
        evidence = (*evidence, *(f"log: {text}" for text in new(troubles)))
        fix += f"; begin with this: {troubles[0]}"
    if is_text_alone(context.trace) and finding.verdict in _WAITS:
        began = next((c.text for c in context.trace.claims if c.details.phase), "")
        more = [f"log: where the waiting begins: {shortened(began)}"] if began else []
        evidence = (*evidence, *_timeouts(context), *more, *_hosts(context, finding))
        if began and not finding.culprits:
            fix += "; begin with what the log says right where the waiting begins"
    return replace(finding, evidence=tuple(dict.fromkeys(evidence)), fix=fix)


def _is_open(context: Context, finding: Finding) -> bool:
    """Whether an answer names nobody, or only ranks whose end and place are unknown."""
    if finding.verdict not in _ABSENT:
        return finding.verdict is Verdict.INCONCLUSIVE
    known = [context.trace.ranks[r] for r in finding.culprits if r in context.trace.ranks]
    return not any(f.exit or f.exception or f.threads or f.phases or f.alive for f in known)


def _timeouts(context: Context) -> Iterator[str]:
    """After how long ranks give up, where the log states it."""
    limits_ms = {int(limit) for limit in context.trace.records["timeout_ms"] if limit > 0}
    for claim in context.trace.claims:
        limits_ms |= {int(ms) for ms in _TIMEOUT_MS.findall(claim.text)}
    if 0 < len(limits_ms) <= _MOST:
        times = dict.fromkeys(lasting(limit / 1000) for limit in sorted(limits_ms))
        yield f"timeout: the log states {' or '.join(times)}"


def _hosts(context: Context, finding: Finding) -> Iterator[str]:
    """Which of the ranks concerned are on which host, where they are on several."""
    concerned = {*finding.culprits, *(rank for side in finding.sides for rank in side.ranks)}
    on: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(concerned or set(context.trace.ranks)):
        facts = context.trace.ranks.get(rank)
        if facts is not None and facts.host:
            on[facts.host].append(rank)
    if 1 < len(on) <= _MOST:
        yield "hosts: " + ", ".join(f"{host} ({rank_s(ranks)})" for host, ranks in on.items())


def undecided(context: Context, waiting: Iterable[int] = ()) -> Advice:
    """What to collect if no rank can be named; ``waiting``: ranks that are known to wait."""
    advice = say(Verdict.INCONCLUSIVE)
    if not is_text_alone(context.trace):
        return advice
    claims = context.trace.claims
    waits = {*waiting, *_reporters(c for c in claims if c.kind == "timeout")}
    todo = [*_of_failures(claims, waits)]
    if waits or any(c.kind in ("timeout", "dump_signal") for c in claims):
        silent = context.known_ranks - waits if waits else ()
        whose = _named(silent, "the other members of the group")
        todo.append(f"look at the logs of {whose} (each node's own): who printed nothing of this")
    if any(c.details.announced_last for c in claims):
        todo.append(
            "give hangscope analyze the same lines of every rank (perhaps in files of their own): "
            "the one that announces least is behind"
        )
    if any(c.details.stands for c in claims):
        todo.append("take py-spy dump of every rank: its Python lines say which call that is of")
    return replace(advice, fix="; ".join([*todo[:2], _next_time(context, claims)]))


def _reporters(claims: Iterable[Claim]) -> set[int]:
    return {c.reporter for c in claims if c.reporter is not None}


def _named(ranks: Iterable[int], otherwise: str) -> str:
    few = 0 < len({*ranks}) <= _MOST_NAMED
    return rank_s(ranks) if few else otherwise


def _of_failures(claims: tuple[Claim, ...], waits: set[int]) -> Iterator[str]:
    """What says why a process, a connection or a watchdog failed."""
    if any(c.kind == "launcher_failure" for c in claims):
        yield (
            "look at what the process that ended wrote itself (torchrun --log-dir keeps a file for "
            "each; @record of torch.distributed.elastic puts its traceback into the table), and "
            "at dmesg of its node"
        )
    broken = [c for c in claims if c.kind == "network_error"]
    if any(c.details.store_gone for c in claims):
        yield "look at the log of rank 0 and of its launcher: why the process with the store ended"
    elif broken and not any(_HCCL.search(c.text) for c in claims):
        more = (
            "; NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,NET names the peers of "
            f"{_named(_reporters(broken), 'each rank')} and their addresses"
        )
        yield (
            "look at the log of the rank at the other end: it ended first, or its link is down"
            + (more if any(_NCCL.search(c.text) for c in broken) else "")
        )
    elif any(c.kind == "rendezvous" for c in claims):
        yield (
            "look at the log of every node's launcher for a process that was not started, has "
            "ended, or was given another address or number of members"
        )
    stuck = [c for c in claims if c.details.watchdog_stuck]
    if stuck and not waits:  # else they got stuck in giving up
        yield (
            f"take py-spy dump --native of {_named(_reporters(stuck), 'the process')} while it "
            "stands: its watchdog is held by a CUDA call or by whoever holds the GIL"
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
    if {c.kind for c in claims} - {"other"} == {"rendezvous"}:  # before there is any operation
        store = "TORCH_CPP_LOG_LEVEL=INFO writes who connects to the store, and "
        return (store if _STORE.search(told) else "") + says_at_once
    off = " (this log says that it is off)" if _IS_OFF.search(told) else ""
    return (
        f"TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.8){off} and "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1 make every rank write what it was in at the next timeout, "
        f"and {says_at_once}"
    )
