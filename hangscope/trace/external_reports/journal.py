"""Reads a monitor's journal: what it observed of the ranks, above all how they ended.

JSON lines. The first names the format and the run; every other is an event::

    {"hangscope": "journal/1", "run_id": "...", "attempt": 0, "host": "...", "started_ns": 0}
    {"event": "exit", "rank": 2, "pid": 4711, "at_ns": 0, "code": null, "signal": 9, "oom": false,
     "by_launcher": false, "untold": [0, 3], "told": [1]}
    {"event": "verdict", "at_ns": 0, "verdict": "missing_rank", "culprits": [2], "summary": "...",
     "confidence": "certain", "hosts": ["node1"]}
    {"event": "device", "rank": 2, "at_ns": 0, "text": "the kernel said: ..."}
    {"event": "hosts", "hosts": [["node7", [[56, 1, 8]], ["10.0.3.7"], 7]]}
    {"event": "notice", ...}  # the same fields: what was said early; readers of verdicts pass it by
    {"event": "seen", "rank": 0, "pid": 4709, "at_ns": 0, "alive": true, "state": "sleeping",
     "gil_blocked": false, "cpu_busy": 0.0, "stack_moved": false, "wakeups_hz": 0.1,
     "helpers_busy": 0.9,
     "wait": {"kind": "child", "names": ["git fetch (pid 4720)"], "since_ns": 0, "seen_ns": 0},
     "threads": [{"name": "MainThread", "main": true, "source": "signal", "at_ns": 0,
     "frames": [["step", "train.py", 7]]}]}

``seen`` events are observations of living processes, which cannot be recovered from rings once the
processes are gone. A monitor writes them for a job that hangs: when something begins or ceases to
hold up a rank, when what a rank waits for changes, and when the job ends. Recorded fixtures contain
them, too. The last one of each process counts. ``"recorded": false`` in any event says that the
process had not begun to record: it hung, worked or ended before it loaded torch. If it is seen to
have loaded torch after all, but still has no ring, ``unseen`` takes back what was seen of it. With
``"by_order": true``, its rank was only inferred, from the order in which processes were started::

    {"event": "unseen", "rank": 2, "pid": 4711, "at_ns": 0}

Every line ends with a seal, ``"seal": "..."``, over the file's name and the rest of the line, made
with a secret of the run. A monitor that knows the secret believes no other line; whoever analyses
the files later does not know it, and reads all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, BinaryIO

from hangscope.ring.run_secret import SEAL_CHARACTERS, RunSecret
from hangscope.trace import formats
from hangscope.trace.clean import as_int, as_looks, as_name, as_rank, prose
from hangscope.trace.digests.hosts import HostMap, home_of
from hangscope.trace.facts import WITHOUT_A_WORD
from hangscope.trace.facts_codec import Decoder
from hangscope.trace.files.regular_files import open_nonblocking
from hangscope.trace.model import (
    NONE,
    Claim,
    ExitFacts,
    Fragment,
    RankFacts,
    Source,
)
from hangscope.trace.verdict_codec import MOST_VERDICTS, decode_verdict

HEADER_KEY = "hangscope"
VERSION = "journal/1"
MAX_LINES = 1_000_000
MAX_BYTES = 128 << 20
"""The limit for reading; a journal of thousands of ranks has some tens of megabytes."""
_MOST_NAMED = 100_000
_MOST_DEVICES = 1_000
_MOST = 1 << 31
"""Larger numbers are not valid process ids, statuses or attempts."""

_SEEN = frozenset({
    "alive", "held_by", "wait", "gil_blocked", "cpu_busy", "wakeups_hz", "stack_moved", "threads",
    "helpers_busy",
})  # fmt: skip
"""The fields of `RankFacts` that an observation states under their own names."""

_SEAL = b',"seal":"'
_SEAL_BYTES = len(_SEAL) + SEAL_CHARACTERS + len(b'"}')


def line_of(event: Mapping[str, Any], name: str, secret: RunSecret) -> bytes:
    """An event as a line of the journal with this name, sealed."""
    text = json.dumps(event, separators=(",", ":"))
    seal = secret.seal("journal", name, text)
    return f'{text[:-1]},"seal":"{seal}"}}\n'.encode() if seal else f"{text}\n".encode()


def sealed_lines(data: bytes, name: str, secret: RunSecret) -> bytes:
    """The lines of a journal with this name that were sealed with this secret."""
    return b"".join(
        line for line in data.splitlines(keepends=True) if _is_sealed(line.rstrip(), name, secret)
    )


def _is_sealed(line: bytes, name: str, secret: RunSecret) -> bool:
    body, end = line[:-_SEAL_BYTES], line[-_SEAL_BYTES:]
    seal = end[len(_SEAL) : -2].decode("ascii", "replace")
    text = body.decode("utf-8", "replace") + "}"
    return end.startswith(_SEAL) and secret.is_sealed(seal, "journal", name, text)


def looks_like_journal(prefix: bytes) -> bool:
    """Whether a file with these first bytes is a monitor's journal."""
    return prefix.lstrip().startswith(b'{"hangscope":"journal/')


def read_journal(path: str | os.PathLike[str], data: bytes | None = None) -> list[Fragment]:
    """One fragment per rank whose end the monitor saw, or that it observed.

    ``data``: the file's contents, if they have been read already.

    Raises
    ------
    ValueError
        If the first line is not a journal's.
    OSError
        If it cannot be read.
    """
    first, *rest = _lines(read_bytes(open_nonblocking(path)) if data is None else data)
    head = _event(first)
    if head is not None and str(head.get(HEADER_KEY, "")).startswith("reduction/"):
        return [_reductions(str(path), [head, *map(_event, rest)])]
    if head is None or not str(head.get(HEADER_KEY, "")).startswith("journal/"):
        raise ValueError("not a HangScope journal")
    version = str(head[HEADER_KEY])
    if version != VERSION:
        raise ValueError(f"{version}; this HangScope reads {VERSION}")
    events = list(filter(None, map(_event, rest)))
    looks = as_looks(head.get("looks"))
    fragments = [
        Fragment(Source(str(path), formats.JOURNAL, VERSION, facts.rank, 0), facts, looks=looks)
        for facts in _rank_facts(events, head)
    ]
    if fragments:
        fragments[0] = replace(fragments[0], claims=_verdicts(events))
    if told := (*_homes(events), *_failed_devices(events)):
        source = Source(str(path), formats.JOURNAL, VERSION)
        fragments.append(Fragment(source, RankFacts(rank=NONE), claims=told))
    return fragments


def read_bytes(file: BinaryIO) -> bytes:
    """The contents of an open journal, up to the limit; closes it."""
    with file:
        # A file system that has lost the contents leaves zeros of the same length.
        return file.read(MAX_BYTES).translate(None, b"\0")


def _lines(data: bytes) -> list[str]:
    """The journal's lines, up to the limit; at least one, possibly empty."""
    return data.decode("utf-8", "replace").split("\n", MAX_LINES)[:MAX_LINES]


def _rank_facts(events: Iterable[dict[str, Any]], head: dict[str, Any]) -> list[RankFacts]:
    """The first exit event and the last observation of each rank."""
    ends: dict[int, RankFacts] = {}
    seen: dict[int, RankFacts] = {}
    for event in events:
        if event.get("event") == "exit" and (facts := _exit(event, head)) is not None:
            ends.setdefault(facts.rank, facts)
        elif event.get("event") == "seen" and (facts := _observation(event, head)) is not None:
            seen[facts.rank] = facts
        elif event.get("event") == "unseen" and (rank := as_rank(event.get("rank"))) is not None:
            seen.pop(rank, None)
    return [*ends.values(), *seen.values()]


def _verdicts(events: Iterable[dict[str, Any]]) -> tuple[Claim, ...]:
    """The verdicts that the monitor gave while the job ran, oldest first."""
    verdicts = (event for event in events if event.get("event") == "verdict")
    return tuple(map(decode_verdict, islice(verdicts, MOST_VERDICTS)))


def _homes(events: Sequence[dict[str, Any]]) -> tuple[Claim, ...]:
    """Which ranks run on which host, as the monitors last told each other."""
    said = [event.get("hosts") for event in events if event.get("event") == "hosts"]
    try:
        known = HostMap.decode(json.dumps(said[-1]).encode()) if said else HostMap()
    except (ValueError, TypeError, OverflowError):
        return ()
    return tuple(map(home_of, known.hosts))


def _failed_devices(events: Iterable[dict[str, Any]]) -> tuple[Claim, ...]:
    """Devices of ranks that had reported an error after which they do no more work."""
    said = [
        failed_device(rank, as_int(event.get("at_ns"), 0, low=0), prose(str(event.get("text"))))
        for event in events
        if event.get("event") == "device" and (rank := as_rank(event.get("rank"))) is not None
    ]
    return tuple(said[:_MOST_DEVICES])


def failed_device(rank: int, at_ns: int, text: str) -> Claim:
    """The claim that a rank's device has failed; ``at_ns``: when it reported that."""
    return Claim("device_failed", accused=(rank,), text=text, at_ns=at_ns)


def _reductions(path: str, events: list[dict[str, Any] | None]) -> Fragment:
    """The findings of ``HANGSCOPE_CHECK_REDUCE``: which all-reduce was wrong on which ranks."""
    claims = []
    for event in events[:MAX_LINES]:
        if event is None:
            continue
        accused = event.get("accused")
        ranks = map(as_rank, accused if isinstance(accused, list) else ())
        claims.append(
            Claim(
                "reduction_corrupt",
                accused=tuple(rank for rank in ranks if rank is not None),
                text=prose(str(event.get("text", ""))),
                at_ns=as_int(event.get("at_ns"), 0, low=0),
                certain=not event.get("ambiguous"),
            )
        )
    return Fragment(
        source=Source(path, formats.JOURNAL, "reduction/1"),
        facts=RankFacts(rank=-1),
        claims=tuple(claims),
    )


def _event(line: str) -> dict[str, Any] | None:
    """One event; None for a torn or foreign line (the monitor may be killed while writing)."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _process(event: dict[str, Any], head: dict[str, Any]) -> RankFacts | None:
    """The process that an event is about; None if it is not a rank."""
    rank = as_rank(event.get("rank"))
    if rank is None:
        return None
    attempt = as_int(head.get("attempt"), NONE, low=0, high=_MOST)
    return RankFacts(
        rank=rank,
        host=as_name(event.get("host") or head.get("host")) or None,
        machine=as_name(head.get("machine")),
        pid=as_int(event.get("pid"), 0, low=0, high=_MOST) or None,
        run_id=as_name(head.get("run_id")) or None,
        attempt=None if attempt == NONE else attempt,
        is_placed_by_order=event.get("by_order") is True,
        initialized=False if event.get("recorded") is False else None,
    )


def _exit(event: dict[str, Any], head: dict[str, Any]) -> RankFacts | None:
    """How a rank's process ended."""
    process = _process(event, head)
    if process is None:
        return None
    code, signal = event.get("code"), event.get("signal")
    code = code if type(code) is int and abs(code) <= _MOST else None
    signal = signal if type(signal) is int and 0 < signal <= _MOST else None
    if event.get("oom"):
        kind = "oom"
    elif signal is not None:
        kind = "signal"
    elif code is None:
        kind = "unknown"
    else:
        kind = "clean" if code == 0 else "code"
    at_ns = as_int(event.get("at_ns"), 0, low=0)
    by_launcher = bool(event.get("by_launcher"))
    rest, signalled = event.get("untold"), event.get("told")
    return replace(
        process,
        alive=False,
        process_state="gone",
        exit=ExitFacts(
            kind,
            code=code,
            signal=signal,
            at_ns=at_ns,
            by_launcher=by_launcher,
            not_signalled=_ranks(rest) if isinstance(rest, list) else None,
            signalled=_ranks(signalled) if isinstance(signalled, list) else frozenset(),
        ),
    )


def _ranks(values: list[Any]) -> frozenset[int]:
    return frozenset(v for v in values[:_MOST_NAMED] if as_rank(v) is not None)


def _observation(event: dict[str, Any], head: dict[str, Any]) -> RankFacts | None:
    """An observation of a rank's process."""
    process, alive, state = _process(event, head), event.get("alive"), event.get("state")
    if process is None or not isinstance(alive, bool):
        return None
    told = Decoder().values(RankFacts, event, _SEEN)
    return replace(
        process,
        **told,
        process_state=as_name(state) if isinstance(state, str) else None,
        exit=None if alive else ExitFacts("unknown", text=WITHOUT_A_WORD),
        observed_ns=as_int(event.get("at_ns"), 0, low=0),
    )
