"""The key ``hangscope`` in our own dumps: what the Flight Recorder format has no place for.

The format covers only operations. How the rank ended, what it raised, its phases and the stacks of
its threads are stored beside them, as builtins; other readers ignore the key. Reading expects
untrusted input: anything may be missing, wrong or made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.trace import clean
from hangscope.trace.facts_codec import Decoder, Encoder
from hangscope.trace.job_selection.duplicate_ranks import KEY as TWINS
from hangscope.trace.job_selection.duplicate_ranks import duplicate_rank_claim
from hangscope.trace.model import MAX_RANK, Claim, Flag, RankFacts
from hangscope.trace.verdict_codec import MOST_VERDICTS, decode_verdict

KEY = "hangscope"
VERDICTS = "verdicts"
_EXITS = frozenset({"clean", "exception", "code", "signal", "oom", "unknown"})
_TOLD = frozenset({
    "observed_ns", "phases", "threads", "alive", "process_state", "held_by", "gil_blocked", "wait",
    "cpu_busy", "heartbeat_ns", "heartbeat_interval_s", "stack_moved", "wakeups_hz",
    "helpers_busy", "initialized",
    "finalized", "rendezvous", "declared", "freed_ns", "started_ns", "unobservable", "exit",
    "exception", "handled",
})  # fmt: skip
"""The fields of `RankFacts` that are stored."""


def encode_facts(facts: RankFacts) -> dict[str, Any]:
    """The rank's facts as builtins."""
    threads = tuple(thread for thread in facts.threads if thread.stack)
    return Encoder().facts(replace(facts, threads=threads), _TOLD)


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
    listed = said[:MOST_VERDICTS] if isinstance(said, (list, tuple)) else ()
    return tuple(decode_verdict(v) for v in listed if isinstance(v, dict))


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
    told = Decoder().values(RankFacts, value, _TOLD)
    if told.get("exit") is not None:
        told["exit"] = told["exit"] if told["exit"].kind in _EXITS else None
        told["alive"] = False if told["exit"] else told.get("alive")
    told["threads"] = tuple(thread for thread in told.get("threads", ()) if thread.stack)
    told["observed_ns"] = told.get("observed_ns") or facts.observed_ns
    return replace(
        facts,
        **told,
        world_size=facts.world_size
        or clean.as_int(value.get("world_size"), 0, low=0, high=MAX_RANK + 1)
        or None,
        run_id=facts.run_id or clean.as_name(value.get("run_id")) or None,
        host=facts.host or clean.as_name(value.get("host")) or None,
    )
