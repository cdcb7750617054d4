"""The key ``hangscope`` in our own dumps: what the Flight Recorder format has no place for.

The format covers only operations. How the rank ended, what it raised, its phases and the stacks of
its threads are stored beside them, as builtins; other readers ignore the key. Reading expects
untrusted input: anything may be missing, wrong or made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.trace import clean
from hangscope.trace.job_selection.duplicate_ranks import KEY as TWINS
from hangscope.trace.job_selection.duplicate_ranks import duplicate_rank_claim
from hangscope.trace.model import (
    MAX_RANK,
    Claim,
    ExceptionFacts,
    ExitFacts,
    Flag,
    Phase,
    RankFacts,
)
from hangscope.trace.stack_codec import decode_stack, decode_threads, encode_stack, encode_threads
from hangscope.trace.verdict_codec import MOST_VERDICTS, decode_verdict
from hangscope.trace.wait_codec import decode_wait, encode_wait

KEY = "hangscope"
VERDICTS = "verdicts"
MAX_PHASES = 64
_EXITS = frozenset({"clean", "exception", "code", "signal", "oom", "unknown"})


def encode_facts(facts: RankFacts) -> dict[str, Any]:
    """The rank's facts as builtins."""
    story: dict[str, Any] = {
        "observed_ns": facts.observed_ns,
        "phases": [[p.name, p.since_ns, p.detail] for p in facts.phases],
        "threads": encode_threads(facts.threads),
        "alive": facts.alive,
        "process_state": facts.process_state,
        "held_by": facts.held_by,
        "gil_blocked": facts.gil_blocked,
        "cpu_busy": facts.cpu_busy,
        "heartbeat_ns": facts.heartbeat_ns,
        "heartbeat_interval_s": facts.heartbeat_interval_s,
        "stack_moved": facts.stack_moved,
        "wakeups_hz": facts.wakeups_hz,
        "initialized": facts.initialized,
        "finalized": facts.finalized,
        "rendezvous": facts.rendezvous,
        "declared": facts.declared,
        "freed_ns": facts.freed_ns,
        "started_ns": facts.started_ns,
        "unobservable": list(facts.unobservable),
    }
    if facts.wait is not None:
        story["wait"] = encode_wait(facts.wait)
    if facts.exit is not None:
        # Lists instead of sets: readers that scan a pickle expect none, and JSON has none.
        end = asdict(facts.exit)
        rest, signalled = end.pop("not_signalled"), end.pop("signalled")
        story["exit"] = end | {
            "untold": None if rest is None else sorted(rest),
            "told": sorted(signalled),
        }
    for key, error in (("exception", facts.exception), ("handled", facts.handled)):
        if error is not None:
            story[key] = asdict(replace(error, stack=())) | {"stack": encode_stack(error.stack)}
    return story


def timeout_s_of(value: Any) -> float | None:
    """Seconds that an operation of this job may wait before it counts as hung."""
    stated = value.get("timeout_s") if isinstance(value, Mapping) else None
    return clean.as_quantity(stated) or None


def claims_in(value: Any, rank: int) -> tuple[Claim, ...]:
    """The claim, if our dump has one, that two processes have this rank."""
    text = value.get(TWINS) if isinstance(value, Mapping) else None
    return (
        (duplicate_rank_claim(rank, clean.prose(text)),) if isinstance(text, str) and text else ()
    )


def verdicts_in(value: Any) -> tuple[Claim, ...]:
    """What a monitor concluded while the job ran, oldest first."""
    said = value.get(VERDICTS) if isinstance(value, Mapping) else None
    return tuple(decode_verdict(v) for v in _listed(said, MOST_VERDICTS) if isinstance(v, dict))


def looks_of(value: Any) -> int | None:
    """How many looks at the running job its observer had taken; None if it did not run."""
    return clean.as_looks(value.get("looks")) if isinstance(value, Mapping) else None


def unlisted_groups(value: Any) -> frozenset[str]:
    """Groups whose members no source listed; ``pg_config`` has the ranks that used them."""
    names = value.get("unlisted_groups") if isinstance(value, Mapping) else None
    return (
        frozenset(clean.as_name(name) for name in names) if isinstance(names, list) else frozenset()
    )


def flags_of(value: Any, count: int) -> npt.NDArray[np.uint16] | None:
    """The `Flag` values of a dump's entries; None if they are absent."""
    flags = value.get("flags") if isinstance(value, Mapping) else None
    if not isinstance(flags, list) or len(flags) != count:
        return None
    known = int(~Flag.SYNTHETIC & sum(Flag))
    return np.array([flag & known if type(flag) is int else 0 for flag in flags], np.uint16)


def decode_into(value: Any, facts: RankFacts) -> RankFacts:
    """The facts, completed with those stored under the key."""
    if not isinstance(value, Mapping):
        return facts
    exit_ = _exit(value.get("exit"))
    return replace(
        facts,
        world_size=facts.world_size
        or clean.as_int(value.get("world_size"), 0, low=0, high=MAX_RANK + 1)
        or None,
        run_id=facts.run_id or clean.as_name(value.get("run_id")) or None,
        host=facts.host or clean.as_name(value.get("host")) or None,
        observed_ns=clean.as_int(value.get("observed_ns"), 0, low=0) or facts.observed_ns,
        phases=_phases(value.get("phases")),
        threads=decode_threads(value.get("threads")),
        process_state=clean.as_name(value.get("process_state")) or None,
        held_by=clean.as_name(value.get("held_by")) or None,
        wait=decode_wait(value.get("wait")),
        gil_blocked=_truth(value.get("gil_blocked")),
        cpu_busy=clean.as_quantity(value.get("cpu_busy")),
        heartbeat_ns=clean.as_int(value.get("heartbeat_ns"), 0, low=0),
        heartbeat_interval_s=clean.as_quantity(value.get("heartbeat_interval_s")),
        stack_moved=_truth(value.get("stack_moved")),
        wakeups_hz=clean.as_quantity(value.get("wakeups_hz")),
        initialized=_truth(value.get("initialized")),
        finalized=_truth(value.get("finalized")),
        rendezvous=_detail(value.get("rendezvous")) or None,
        declared=_truth(value.get("declared")),
        freed_ns=clean.as_int(value.get("freed_ns"), 0, low=0),
        started_ns=clean.as_int(value.get("started_ns"), 0, low=0),
        unobservable=tuple(map(clean.as_name, _listed(value.get("unobservable"), MAX_PHASES))),
        exit=exit_,
        alive=False if exit_ is not None else _truth(value.get("alive")),
        exception=_exception(value.get("exception")),
        handled=_exception(value.get("handled")),
    )


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _listed(value: Any, most: int) -> Sequence[Any]:
    return value[:most] if isinstance(value, (list, tuple)) else ()


def _phases(value: Any) -> tuple[Phase, ...]:
    rows = _listed(value, MAX_PHASES)
    return tuple(
        Phase(clean.as_name(row[0]), clean.as_int(row[1], 0, low=0), _detail(row[2]))
        for row in rows
        if isinstance(row, (list, tuple)) and len(row) == 3 and isinstance(row[0], str)
    )


def _detail(value: Any) -> str:
    """A list of members may be longer than a name."""
    return clean.prose(value) if isinstance(value, str) else clean.as_name(value)


def _number(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 31 else None


def _exit(value: Any) -> ExitFacts | None:
    if not isinstance(value, Mapping) or value.get("kind") not in _EXITS:
        return None
    return ExitFacts(
        kind=str(value["kind"]),
        code=_number(value.get("code")),
        signal=_number(value.get("signal")),
        at_ns=clean.as_int(value.get("at_ns"), 0, low=0),
        by_launcher=value.get("by_launcher") is True,
        text=clean.as_name(value.get("text")),
        not_signalled=_ranks(value.get("untold")),
        signalled=_ranks(value.get("told")) or frozenset(),
    )


def _ranks(value: Any) -> frozenset[int] | None:
    """A set of ranks; None if absent or malformed."""
    known = isinstance(value, list) and all(clean.as_rank(r) is not None for r in value)
    return frozenset(value) if known else None


def _exception(value: Any) -> ExceptionFacts | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("type_name"), str):
        return None
    message = value.get("message")
    return ExceptionFacts(
        type_name=clean.as_name(value["type_name"]),
        message=clean.prose(message) if isinstance(message, str) else "",
        stack=decode_stack(value.get("stack")),
        at_ns=clean.as_int(value.get("at_ns"), 0, low=0),
        thread_name=clean.as_name(value.get("thread_name"), "MainThread"),
        is_main_thread=value.get("is_main_thread") is not False,
        native_id=clean.as_int(value.get("native_id"), 0, low=0),
    )
