"""What the evidence can show and what its silence means: the one place that knows kinds of sources.

Everywhere else the diagnosis asks these questions, of a rank or a record, and never which file
an answer came from. So a second source beside the first changes only what it tells itself:

====================================================  ==========================================
Is it told what a rank issued?                        `recorded_ranks`; of `unrecorded` it is not
Did the rank record that itself?                      `recorders`; `of_text` are known from text
At one moment, or until its end?                      `snapshots`; `is_followed`
From its first operation on? To its last one?         not of `hidden_ranks`; not of `cut_off`
Finished operations, too?                             not of `unfinished_alone`
Does silence mean that a rank did nothing?            not where `is_text_alone`, least `cut_short`
The end of an operation? The return of its caller?    `end_is_unseen`; `shows_returns`
Sends and receives?                                   not if `lacks_pairs`
Who belongs to a group?                               `Group.listed`; names may be `named_locally`
====================================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hangscope.trace import formats
from hangscope.trace.files.file_names import is_output, rank_of_dump, rank_of_log
from hangscope.trace.files.sniff import EMPTY_FILE
from hangscope.trace.model import Flag, Records, State, Trace, flagged

Bools = npt.NDArray[np.bool_]

_DAMAGED = ("truncated", EMPTY_FILE, "damaged", "a placeholder", "nothing but zero bytes")
_UNKNOWN_FORM = ("its entries ", "none of its entries ")
"""How the complaint begins about a dump of a kind that HangScope does not know."""
_KEPT_FROM_US = ("permission denied", "operation not permitted", "input/output", "stale file")
_OWN_ERRORS = ("device_error", "oom")
_ON_HOST = ("gloo", "mpi")
_NUMBERED = "none"
"""Version of dumps whose groups have no names."""


def recorders(trace: Trace) -> frozenset[int]:
    """Ranks that left a record of their own, even an empty one."""
    return _ranks_of(trace, formats.RECORDS)


def snapshots(trace: Trace) -> frozenset[int]:
    """Ranks whose record was written at one moment: what they did since is unknown."""
    return _ranks_of(trace, formats.DUMPS)


def counts_on(trace: Trace) -> frozenset[int]:
    """Ranks whose counters go on when their records are overwritten."""
    return _ranks_of(trace, (formats.RING,))


def is_followed(trace: Trace) -> bool:
    """Whether a recorder or a monitor of ours saw any rank until its end, or until now."""
    return any(source.format in (formats.RING, formats.JOURNAL) for source in trace.sources)


def is_text_alone(trace: Trace) -> bool:
    """Whether everything is known from printed text, in which silence proves little."""
    return trace.only_logs


def of_text(trace: Trace) -> frozenset[int]:
    """Ranks that are known from printed text alone, whatever is recorded of others."""
    told = {source.rank for source in trace.sources if source.format != formats.LOG}
    text = any(source.format == formats.LOG for source in trace.sources)
    return frozenset(trace.ranks).difference(told) if text else frozenset()


def cut_short(trace: Trace) -> bool:
    """Whether all there is begins or ends in the middle of a message.

    Ranks missing from such an excerpt may appear in the rest.
    """
    return is_text_alone(trace) and any(c.details.cut for c in trace.claims)


def recorded_ranks(trace: Trace) -> frozenset[int]:
    """Ranks of which it is told what they issued, even if that is nothing; a few printed lines do
    not tell that.

    A rank that was seen before it could begin to record has issued nothing.
    """
    told = {
        s.rank
        for s in trace.sources
        if s.rank is not None and s.format not in (formats.LOG, formats.JOURNAL)
    }
    if not trace.sources or told.issuperset(trace.ranks):
        return frozenset(trace.ranks)
    told.update(rank for rank, facts in trace.ranks.items() if facts.initialized is False)
    rows = trace.records
    if not is_text_alone(trace):  # beside records, lines say little about what a rank has issued
        rows = rows[~flagged(rows["flags"], Flag.SYNTHETIC)]
    told.update(np.unique(rows["rank"]).tolist())
    return frozenset(r for r in told if r in trace.ranks)


def unrecorded(trace: Trace) -> frozenset[int]:
    """Ranks of which nothing tells what they issued, although other ranks left records.

    A monitor's journal, a launcher or their own output tells at most how they ended.
    """
    recorded = recorded_ranks(trace)
    if not recorded or is_text_alone(trace):
        return frozenset()
    return frozenset(trace.ranks) - recorded - _heard(trace)


def merely_named(trace: Trace) -> frozenset[int]:
    """Ranks of which there is nothing but ordinary output."""
    silent = {rank for rank, facts in trace.ranks.items() if facts.is_only_named}
    return of_text(trace).intersection(silent) - _heard(trace)


def _heard(trace: Trace) -> set[int | None]:
    """Ranks of which printed text tells what they wait in, or what they did wrong."""
    of_log = [source.format == formats.LOG for source in trace.sources]
    if not any(of_log):
        return set()
    said = (c for c in trace.claims if not 0 <= c.source < len(of_log) or of_log[c.source])
    heard = {rank for c in said for rank in (c.reporter, *c.accused)}
    return heard.union(np.unique(trace.records["rank"]).tolist())


def unreadable(trace: Trace) -> dict[int, str]:
    """Ranks whose file exists but cannot be read, and why: they lived to write it."""
    found = {}
    untold = unrecorded(trace)
    for file in trace.unread:
        rank = _whose(Path(file.path), file.why)
        if rank is not None and (rank not in trace.ranks or rank in untold):
            found[rank] = file.why
    return found


def is_unknown_form(why: str) -> bool:
    """Whether this is said of a whole dump with entries that cannot be interpreted."""
    return why.startswith(_UNKNOWN_FORM)


def _whose(path: Path, why: str) -> int | None:
    """The rank that wrote an unreadable file; None if it could be anything.

    A file that is not a ring by its name belongs to a rank only if its name says so: the number in
    `core.3` is not a rank.
    """
    if why == EMPTY_FILE and is_output(path):
        return None  # nothing was printed
    if path.suffix == ".ring" or why.startswith(_DAMAGED) or is_unknown_form(why):
        return rank_of_dump(path)
    return rank_of_log(path) if why.startswith(_KEPT_FROM_US) else None


def hidden_ranks(trace: Trace) -> frozenset[int]:
    """Ranks whose records do not go back to the start."""
    late = {rank for rank, facts in trace.ranks.items() if facts.oldest_record_id > 1}
    return partly_recorded(trace) | unfinished_alone(trace) | late


def unfinished_alone(trace: Trace) -> frozenset[int]:
    """Ranks whose records are of unfinished operations alone."""
    return frozenset(rank for rank, facts in trace.ranks.items() if facts.only_active)


def cut_off(trace: Trace) -> frozenset[int]:
    """Ranks known only from a truncated file: it shows how far they had got, and no more."""
    return frozenset(rank for rank, facts in trace.ranks.items() if facts.newest_lost)


def partly_recorded(trace: Trace) -> frozenset[int]:
    """Ranks whose watchdog speaks in printed text that does not show what they wait in.

    So does that of a rank which aborted itself after others had given up waiting.
    """
    found = {c.reporter for c in trace.claims if c.details.partly_recorded}
    gave_up_ns = [c.at_ns for c in trace.claims if c.kind == "timeout" and c.at_ns]
    if gave_up_ns:
        ends = {r: exit_ for r in of_text(trace) if (exit_ := trace.ranks[r].exit) is not None}
        own = {r for c in trace.claims if c.kind in _OWN_ERRORS for r in c.accused}
        found |= {r for r, e in ends.items() if e.aborted and e.at_ns > min(gave_up_ns)} - own
    return frozenset(r for r in found if r is not None)


def named_locally(trace: Trace, *, all_of_them: bool = False) -> bool:
    """Whether ranks number their groups by themselves, so that a name does not say which group.

    Records that give only a group's number count too: no source lists members or describes it.
    """
    dumps = [s for s in trace.sources if s.format in formats.DUMPS]
    if not all_of_them:
        return any(s.version == _NUMBERED for s in dumps)
    numbered = all(not g.listed and not g.desc and g.name.isdigit() for g in trace.groups)
    return bool(dumps) and (numbered or all(s.version == _NUMBERED for s in dumps))


def end_is_unseen(trace: Trace, row: int) -> bool:
    """Whether the operation's source cannot observe its end and nothing else reported it."""
    record = trace.records[row]
    hidden = int(record["flags"]) & int(Flag.UNOBSERVED)
    return hidden != 0 and record["state"] != int(State.COMPLETED)


def shows_returns(trace: Trace) -> Bools:
    """Per record: whether its recorder saw the caller leave a blocking operation.

    Ours does, also where its records were exported: nothing else reports heartbeats.
    """
    beating = {rank for rank, facts in trace.ranks.items() if facts.heartbeat_ns}
    ours = counts_on(trace) | (snapshots(trace) & beating)
    if ours.issuperset(trace.ranks):
        return np.ones(len(trace.records), bool)
    found: Bools = np.isin(trace.records["rank"], np.array(sorted(ours), np.int64))
    return found


def lacks_pairs(trace: Trace, part: Records) -> bool:
    """Whether these records are of a recorder that omits sends and receives (Gloo's own).

    It is recognised by another omission: no operation has a completion time.
    """
    backends = {trace.signatures[s].backend for s in np.unique(part["signature"]).tolist()}
    pairs = part["flags"] & int(Flag.P2P | Flag.SYNTHETIC)
    return not part["completed_ns"].any() and not pairs.any() and backends == {"gloo"}


def runs_on_host(backend: str) -> bool:
    """Whether a backend, or one of several (``cpu:gloo,cuda:nccl``), runs operations on the host,
    each thread its own; the others queue them on a device."""
    return any(name.rpartition(":")[2] in _ON_HOST for name in backend.split(","))


def _ranks_of(trace: Trace, kinds: Iterable[str]) -> frozenset[int]:
    found = {source.rank for source in trace.sources if source.format in kinds}
    return frozenset(rank for rank in found if rank is not None)
