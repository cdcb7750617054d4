"""Merges what several sources say about one rank's process, field by field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from hangscope.trace import formats
from hangscope.trace.model import (
    ON_ITS_WAY_OUT,
    ExceptionFacts,
    ExitFacts,
    KernelWait,
    RankFacts,
    ThreadStack,
)
from hangscope.trace.units import SECOND_NS

# Most trusted first: how well a source knows the process.
_BY_TRUST = (formats.RING, formats.JOURNAL, formats.PICKLE, formats.JSON, formats.LOG)
TRUST = {name: place for place, name in enumerate(_BY_TRUST)}
_LATE_NS = SECOND_NS
"""A look at what a process waits for is ignored if it is this much older than the newest look."""
_OWN_WORDS = ("exception", "code", "clean")
_FAILED = ("exception", "code", "oom")
_EXIT_ORDER = ("oom", "exception", "signal", "code", "clean", "unknown")
_SPECIAL = {
    "rank",
    "alive",
    "process_state",
    "held_by",
    "wait",
    "exit",
    "exception",
    "threads",
    "phases",
    "heartbeat_ns",
    "observed_ns",
    "dropped",
    "only_active",
    "newest_lost",
    "unobservable",
    "finalized",
    "initialized",
}


def merge_facts(said: Sequence[tuple[str, RankFacts]]) -> RankFacts:
    """Merge (format, facts) pairs about the same rank into one `RankFacts`.

    A value wins over None. Between values the more trusted source wins, or, for anything that
    changes with time, the newer look.
    """
    said = _without_survived(_without_outdated_looks(said))
    if len(said) == 1:
        return said[0][1]
    ordered = [f for _, f in sorted(said, key=lambda pair: TRUST.get(pair[0], 9))]
    newest = sorted(ordered, key=lambda f: -f.observed_ns)
    values: dict[str, Any] = {"rank": ordered[0].rank}
    for field in fields(RankFacts):
        if field.name in _SPECIAL:
            continue
        values[field.name] = _first(ordered, field.name, field.default)
    recorders = [f for name, f in said if name in formats.RECORDS]
    exit_facts = _merge_exits(_with_seen_status(said, [f.exit for f in ordered if f.exit]))
    alive = _first(newest, "alive", None)
    ended = exit_facts is not None and not any(
        f.alive and f.observed_ns > exit_facts.at_ns > 0 for f in newest
    )
    values.update(
        alive=False if ended else alive,
        process_state=_first(newest, "process_state", None),
        held_by=_first(newest, "held_by", None),
        wait=_merge_waits(newest),
        exit=exit_facts,
        exception=_merge_exceptions([f.exception for f in ordered if f.exception is not None]),
        threads=_merge_threads(ordered),
        phases=next((f.phases for f in newest if f.phases), ()),
        heartbeat_ns=max(f.heartbeat_ns for f in ordered),
        observed_ns=_last_look_ns(said),
        dropped=sum(f.dropped for f in ordered),
        only_active=bool(recorders) and all(f.only_active for f in recorders),
        newest_lost=bool(recorders) and all(f.newest_lost for f in recorders),
        unobservable=tuple(dict.fromkeys(u for f in ordered for u in f.unobservable)),
        finalized=_any_true([f.finalized for f in ordered]),
        initialized=_any_true([f.initialized for f in ordered]),
    )
    return RankFacts(**values)


def _last_look_ns(said: Sequence[tuple[str, RankFacts]]) -> int:
    """When the rank was last observed.

    A later log line is no observation of what was recorded: the dumps of two ranks keep their age,
    whichever of the two writes to a log.
    """
    looked = [f.observed_ns for name, f in said if name != formats.LOG]
    return max(looked, default=0) or max(f.observed_ns for _, f in said)


def _without_outdated_looks(said: Sequence[tuple[str, RankFacts]]) -> list[tuple[str, RankFacts]]:
    """Drop what monitors saw of a live process where it is known to have changed since."""
    rings = [f for name, f in said if name == formats.RING]
    living = any(f.alive for f in rings)
    over = any(f.alive is False for name, f in said if name in (formats.RING, formats.JOURNAL))
    beat_ns = max((f.heartbeat_ns for f in rings), default=0)
    kept = []
    for name, facts in said:
        if name == formats.JOURNAL and facts.alive:
            if living:
                # The ring shows it now; earlier looks may tell since when it has waited.
                if facts.wait is not None:
                    kept.append((name, RankFacts(facts.rank, wait=facts.wait)))
                continue
            facts = replace(facts, alive=None) if over else facts
            if facts.observed_ns < beat_ns:  # it ran again before it ended
                state = None if facts.process_state == "stopped" else facts.process_state
                facts = replace(facts, process_state=state, gil_blocked=None)
        kept.append((name, facts))
    return kept


def _without_survived(said: Sequence[tuple[str, RankFacts]]) -> list[tuple[str, RankFacts]]:
    """Drop tracebacks in a log that did not end the process, according to what it recorded.

    A log shows that a traceback was printed, not that it was the end: programs print what they
    handle. HangScope's recorder notes every exception that nobody handles; one that it does not
    know counts only if the process ended with a status of its own, or after the ring was read. A
    dump shows that its process lived to write it, so it outweighs what the program itself printed.
    """
    ends = [f.exit for name, f in said if f.exit is not None and name != formats.LOG]
    if any(e.kind in _FAILED or e.aborted for e in ends):
        return list(said)
    rings = [f for name, f in said if name == formats.RING]
    if any(f.exception is not None for f in rings):
        return list(said)
    read_ns = max((f.observed_ns for f in rings), default=0)
    dumped = any(name in formats.DUMPS for name, _ in said)
    return [
        (name, _survived(facts, read_ns, dumped=dumped) if name == formats.LOG else facts)
        for name, facts in said
    ]


def _survived(facts: RankFacts, read_ns: int, *, dumped: bool) -> RankFacts:
    error = facts.exception
    if error is None or not (0 <= error.at_ns < read_ns or (dumped and error.may_be_handled)):
        return facts
    exit_ = facts.exit if facts.exit is not None and facts.exit.kind != "exception" else None
    return replace(facts, exception=None, exit=exit_, printed=error)


def _merge_waits(newest: Sequence[RankFacts]) -> KernelWait | None:
    """The newest wait, dated from when it was first seen; for a live process only a current one."""
    waits = sorted((f.wait for f in newest if f.wait is not None), key=lambda w: -w.seen_ns)
    seen_ns = max((f.observed_ns for f in newest if f.alive), default=0)
    if not waits or waits[0].seen_ns < seen_ns - _LATE_NS:
        return None
    same = [w.since_ns for w in waits if w.is_same(waits[0])]
    return replace(waits[0], since_ns=min(same))


def _first(ordered: Sequence[RankFacts], name: str, default: Any) -> Any:
    for facts in ordered:
        value = getattr(facts, name)
        if value is not None and value != default:
            return value
    return default


def _any_true(values: Sequence[bool | None]) -> bool | None:
    if any(values):
        return True
    return False if any(v is False for v in values) else None


def _with_seen_status(
    said: Sequence[tuple[str, RankFacts]], exits: Sequence[ExitFacts]
) -> list[ExitFacts]:
    """The exits, with the status that the monitor saw, if it saw one.

    A process knows only the status it meant to exit with: ``SystemExit`` may have been raised
    elsewhere, or caught.
    """
    for name, facts in said:
        seen = facts.exit
        if name == formats.JOURNAL and seen is not None and seen.kind in ("clean", "code"):
            return [
                replace(e, kind=seen.kind, code=seen.code) if e.kind in ("clean", "code") else e
                for e in exits
            ]
    return list(exits)


def _merge_exits(exits: Sequence[ExitFacts]) -> ExitFacts | None:
    """The most specific kind; code, signal and text from sources that have them; earliest time."""
    if not exits:
        return None
    own = [e.at_ns for e in exits if e.kind in _OWN_WORDS and not e.by_launcher and e.at_ns]
    asked_ns = [e.at_ns for e in exits if e.by_launcher]
    if own and asked_ns and min(own) <= min(asked_ns):
        # It was already exiting when the launcher stopped the rest.
        exits = [e for e in exits if not e.by_launcher]
    best = min(exits, key=lambda e: _EXIT_ORDER.index(e.kind) if e.kind in _EXIT_ORDER else 9)
    times = [e.at_ns for e in exits if e.at_ns]
    left = [e.at_ns for e in exits if e.kind in ("clean", "code") and e.signal is None]
    alone = best.kind == "signal" and not best.text and not best.by_launcher
    if alone and left and max(left) <= best.at_ns:
        best = replace(best, text=ON_ITS_WAY_OUT)
    return replace(
        best,
        code=next((e.code for e in [best, *exits] if e.code is not None), None),
        signal=next((e.signal for e in [best, *exits] if e.signal is not None), None),
        at_ns=_earliest(times),
        by_launcher=any(e.by_launcher for e in exits),
        text=best.text or next((e.text for e in exits if e.text), ""),
        not_signalled=next((e.not_signalled for e in exits if e.not_signalled is not None), None),
        signalled=frozenset().union(*(e.signalled for e in exits)),
    )


def _earliest(times: Sequence[int]) -> int:
    """The earliest time; within its second an exact one, because logs give whole seconds."""
    first = min(times, default=0)
    exact = [at for at in times if at % SECOND_NS and at - first < SECOND_NS]
    return min(exact, default=first)


def _merge_exceptions(found: Sequence[ExceptionFacts]) -> ExceptionFacts | None:
    """The main thread's exception before other threads'; of several the one with most detail.

    KeyboardInterrupt takes precedence over what was being handled when it was raised, although a
    log prints the latter first.
    """
    if not found:
        return None
    interrupted = [e for e in found if e.is_main_thread and e.type_name == "KeyboardInterrupt"]
    found = interrupted or found
    best = min(found, key=lambda e: (not e.is_main_thread, not e.stack, not e.message))
    times = [e.at_ns for e in found if e.at_ns]
    message = best.message or next((e.message for e in found if e.message), "")
    return replace(best, message=message, at_ns=_earliest(times))


def _merge_threads(ordered: Sequence[RankFacts]) -> tuple[ThreadStack, ...]:
    kept: dict[tuple[str, str], ThreadStack] = {}
    for facts in ordered:
        for thread in facts.threads:
            key = (thread.name, thread.source)
            known = kept.get(key)
            if known is None or (thread.sampled_ns > known.sampled_ns and thread.stack):
                kept[key] = thread
    return tuple(kept.values())
