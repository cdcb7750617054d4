"""What a rank's records cover: how far back they go, and which ranks left none."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hangscope.diagnosis.records.frontier import Frontiers, Ints
from hangscope.trace import formats
from hangscope.trace.facts import UNRECORDED
from hangscope.trace.files.file_names import is_output, rank_of_dump, rank_of_log
from hangscope.trace.files.sniff import EMPTY_FILE
from hangscope.trace.model import NONE, Flag, State, Trace, flagged

_DAMAGED = ("truncated", EMPTY_FILE, "damaged", "a placeholder", "nothing but zero bytes")
_UNKNOWN_FORM = ("its entries ", "none of its entries ")
"""How the complaint begins about a dump of a kind that HangScope does not know."""
_KEPT_FROM_US = ("permission denied", "operation not permitted", "input/output", "stale file")

_NO_ORDER_NS = 10**9
_OWN_ERRORS = ("device_error", "oom")

Bounds = dict[int, tuple[int, int]]
"""Each rank's slice of the records."""


def hidden_ranks(trace: Trace) -> frozenset[int]:
    """Ranks whose records do not go back to the start."""
    return partly_recorded(trace) | frozenset(
        rank
        for rank, facts in trace.ranks.items()
        if facts.only_active or facts.oldest_record_id > 1
    )


def partly_recorded(trace: Trace) -> frozenset[int]:
    """Ranks whose watchdog appears in a log that does not show what they wait in.

    So does that of a rank which aborted itself after others had given up waiting.
    """
    found = {c.reporter for c in trace.claims if c.details.partly_recorded}
    gave_up_ns = [c.at_ns for c in trace.claims if c.kind == "timeout" and c.at_ns]
    if trace.only_logs and gave_up_ns:
        ends = {r: f.exit for r, f in trace.ranks.items() if f.exit is not None}
        own = {r for c in trace.claims if c.kind in _OWN_ERRORS for r in c.accused}
        found |= {r for r, e in ends.items() if e.aborted and e.at_ns > min(gave_up_ns)} - own
    return frozenset(r for r in found if r is not None)


def cut_off(trace: Trace) -> frozenset[int]:
    """Ranks known only from a truncated file: it shows how far they had got, and no more."""
    return frozenset(rank for rank, facts in trace.ranks.items() if facts.newest_lost)


def end_is_unseen(trace: Trace, row: int) -> bool:
    """Whether the operation's source cannot observe its end and nothing else reported it."""
    record = trace.records[row]
    hidden = int(record["flags"]) & int(Flag.UNOBSERVED)
    return hidden != 0 and record["state"] != int(State.COMPLETED)


def collective_row(
    trace: Trace, front: Frontiers, bounds: Bounds, group: int, rank: int, seq: int
) -> int:
    """The row of a rank's collective, given its sequence number in the group, or -1."""
    low, high = bounds.get(rank, (0, 0))
    part = trace.records[low:high]
    here = (part["group"] == group) & (part["collective_seq"] == seq)
    hits = np.flatnonzero(here & front.collective[low:high])
    return int(low + hits[0]) if len(hits) else NONE


def overrun_ranks(trace: Trace, front: Frontiers) -> frozenset[int]:
    """Ranks whose oldest unfinished operation may be overwritten.

    Either their oldest remaining record is unfinished, or a group's counter implies unfinished
    operations older than any record.
    """
    ranks = trace.records["rank"]
    if not len(ranks):
        return frozenset()
    first = np.concatenate([[0], np.flatnonzero(np.diff(ranks)) + 1])
    open_first = front.unfinished[first]
    return _counted_but_gone(trace, front) | frozenset(
        rank
        for rank, unfinished in zip(ranks[first].tolist(), open_first.tolist(), strict=True)
        if unfinished
        and rank in trace.ranks
        and trace.ranks[rank].oldest_record_id > 1
        and not trace.ranks[rank].only_active
    )


def _counted_but_gone(trace: Trace, front: Frontiers) -> frozenset[int]:
    """Ranks with a group whose oldest unfinished collective is counted but not recorded."""
    members = trace.members
    behind = (members["completed"] >= 0) & (members["enqueued"] > members["completed"])
    if not behind.any():
        return frozenset()
    gone = front.first > front.completed + 1
    first = dict(
        zip(
            zip(front.rank[gone].tolist(), front.group[gone].tolist(), strict=True),
            front.first[gone].tolist(),
            strict=True,
        )
    )
    return frozenset(
        int(m["rank"])
        for m in members[behind]
        if first.get((int(m["rank"]), int(m["group"])), 0) > int(m["completed"]) + 1
        and int(m["rank"]) in trace.ranks
        and trace.ranks[int(m["rank"])].oldest_record_id > 1
    )


def rank_bounds(trace: Trace) -> Bounds:
    """Each rank's slice of the records."""
    ranks = np.ascontiguousarray(trace.records["rank"])
    if not len(ranks):
        return {}
    cuts = np.flatnonzero(np.diff(ranks)) + 1
    starts = np.concatenate([[0], cuts])
    ends = np.concatenate([cuts, [len(ranks)]])
    return {int(ranks[a]): (int(a), int(b)) for a, b in zip(starts, ends, strict=True)}


def known_ranks(trace: Trace) -> frozenset[int]:
    """All ranks, also those of which only the world size, the groups or gaps in the numbering show
    that they exist."""
    shown = {*trace.ranks, *trace.missing_ranks}
    return frozenset(shown.union(range(max(shown, default=0) + 1)))


def gaps(trace: Trace) -> tuple[int, ...]:
    """The `known_ranks` that left nothing."""
    return tuple(sorted(known_ranks(trace) - trace.ranks.keys()))


def lacks_last_rank(trace: Trace) -> bool:
    """Whether there must be a rank beyond the last one known.

    Hardly any job has an odd number of ranks. This counts only if nothing states how many there
    are.
    """
    total = len(known_ranks(trace))
    stated = any(facts.world_size for facts in trace.ranks.values())
    return total > 1 and total % 2 == 1 and not stated


def unreadable(trace: Trace) -> dict[int, str]:
    """Ranks whose file exists but cannot be read, and why: they lived to write it."""
    found = {}
    known = set(known_only_from_journal(trace))
    for file in trace.unread:
        rank = _whose(Path(file.path), file.why)
        if rank is not None and (rank not in trace.ranks or rank in known):
            found[rank] = file.why
    return found


def is_unknown_form(why: str) -> bool:
    """Whether this is said of a whole dump with entries that cannot be interpreted."""
    return why.startswith(_UNKNOWN_FORM)


def could_not_be_recorded(trace: Trace) -> dict[int, str]:
    """Ranks that reported that they could not be recorded, and why."""
    return {r: c.text for c in trace.claims if c.kind == UNRECORDED for r in c.accused}


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


def unlisted(trace: Trace) -> tuple[int, ...]:
    """Those of `gaps` that no group lists; genuine member lists would name them at least once."""
    listed = {r for g in trace.groups for r in g.ranks}
    return tuple(r for r in gaps(trace) if r not in listed)


def without_order(trace: Trace) -> frozenset[int]:
    """Ranks for which a log reports waits in several groups but not where they arrived first.

    A watchdog prints to the millisecond since when an operation has been running, but each group's
    watchdog prints at its own time.
    """
    records = trace.records
    rows = np.flatnonzero(flagged(records["flags"], Flag.SYNTHETIC) & (records["created_ns"] > 0))
    rows = rows[np.lexsort((records["created_ns"][rows], records["rank"][rows]))]
    one, next_ = records[rows[:-1]], records[rows[1:]]
    close = next_["created_ns"] - one["created_ns"] < _NO_ORDER_NS
    close &= (one["rank"] == next_["rank"]) & (one["group"] != next_["group"])
    return frozenset(one["rank"][close].tolist())


def cut_short(trace: Trace) -> bool:
    """Whether the only source is a log that begins or ends in the middle of a message.

    Ranks missing from such an excerpt may appear in the rest.
    """
    return trace.only_logs and any(c.details.cut for c in trace.claims)


def known_only_from_journal(trace: Trace) -> tuple[int, ...]:
    """Ranks whose rings are gone: the monitor's journal reports how they ended, not what they
    did."""
    if any(s.format == formats.LOG for s in trace.sources):
        return ()
    recorded = recorded_ranks(trace)
    return tuple(sorted(set(trace.ranks) - recorded)) if recorded else ()


def only_named_ranks(trace: Trace) -> frozenset[int]:
    """Ranks of which there is nothing but ordinary output in a log."""
    if not any(source.format == formats.LOG for source in trace.sources):
        return frozenset()
    recorded = {source.rank for source in trace.sources if source.format in formats.RECORDS}
    silent = {rank for rank, facts in trace.ranks.items() if facts.is_only_named} - recorded
    heard = {r for claim in trace.claims for r in (claim.reporter, *claim.accused)}
    issued = np.unique(trace.records["rank"]).tolist() if silent else ()
    return frozenset(silent - heard - set(issued))


def recorded_ranks(trace: Trace) -> frozenset[int]:
    """Ranks with a record of their operations, even an empty one; a log is not such a record.

    A rank that was seen before it could begin to record has issued nothing.
    """
    recorded = {
        s.rank
        for s in trace.sources
        if s.rank is not None and s.format not in (formats.LOG, formats.JOURNAL)
    }
    if not trace.sources or recorded.issuperset(trace.ranks):
        return frozenset(trace.ranks)
    recorded.update(rank for rank, facts in trace.ranks.items() if facts.initialized is False)
    rows = trace.records
    if not trace.only_logs:  # next to dumps, a log's lines say little about what a rank has issued
        rows = rows[~flagged(rows["flags"], Flag.SYNTHETIC)]
    recorded.update(np.unique(rows["rank"]).tolist())
    return frozenset(r for r in recorded if r in trace.ranks)


def counted_by_backend(trace: Trace, row: int) -> bool:
    """Whether a counter at this record (-1: none) is the backend's own: nothing else observes the
    end."""
    return row != NONE and end_is_unseen(trace, row)


def counts_as_unfinished(trace: Trace, front: Frontiers, row: int, low: int, pairs: Ints) -> bool:
    """Whether the backend counts the collective in a rank's newest record as unfinished.

    The record that the counter points to must be a device's, too: then the counter is the backend's
    own rather than one derived from completions that the recorder saw.

    Parameters
    ----------
    row, low:
        The rank's newest record, and its oldest.
    pairs:
        The rank's rows of ``front``.
    """
    if front.p2p[row] or not end_is_unseen(trace, row):
        return False
    record, older = trace.records[row], trace.records[low:row]
    done = int(front.completed[pairs[front.group[pairs] == record["group"]]][0])
    here = (older["group"] == record["group"]) & (older["collective_seq"] == done)
    counted = low + np.flatnonzero(here & front.collective[low:row])
    last = int(counted[0]) if len(counted) else NONE
    return counted_by_backend(trace, last) and 0 < done < int(record["collective_seq"])
