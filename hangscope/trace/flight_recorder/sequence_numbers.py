"""Normalises the sequence numbers of a dump.

A backend's own recorder numbers a group's collectives from 1, separately from its sends and
receives. Other recorders count everything that the process issues, from 0 (torchcomms), write 0
into every entry (torch's CUPTI monitor), or start each group at 0. Afterwards all are numbered from
1; 0 stands for an unknown number, which aligns with nothing.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import Records

Bools = npt.NDArray[np.bool_]


class Numbering(Enum):
    """How the recorder numbered collectives; the value says what a reader must know, if anything.

    A report gives the normalised numbers, and whoever opens the dump finds other ones there.
    """

    USUAL = ""
    FROM_ZERO = (
        "numbers the collectives of each group from 0: what is #10 in this report is number 9 there"
    )
    COMMON = (
        "numbers the operations of all groups together; in this report, the collectives of each "
        "group have numbers of their own"
    )
    NONE = (
        "numbers no operation; in this report, the collectives of each group have numbers of their "
        "own"
    )


def normalize_numbers(
    records: Records, pairs: Bools, batches: Bools, *, numbered: bool, counted: bool
) -> Numbering:
    """Number each group's collectives from 1, whatever the recorder counted; in place.

    Parameters
    ----------
    records:
        One rank's records in order of issue.
    pairs, batches:
        For each record, whether it is a send or receive, and whether it closes a batch.
    numbered:
        The entries have ids.
    counted:
        The dump has counters of its groups, as a backend's own recorder writes them.

    Returns
    -------
    Numbering
        How they were numbered before. The dump's group counters, if any, still count from 0 if its
        entries did.
    """
    if are_process_wide(records, numbered=numbered, counted=counted):
        before = records["collective_seq"].copy()
        number_groups(records, pairs | batches)
        changed = bool((records["collective_seq"] != before).any())
        return Numbering.COMMON if changed else Numbering.USUAL
    if numbered and are_unset(records):
        number_groups(records, pairs | batches)
        return Numbering.NONE
    if not start_at_zero(records, pairs, batches):
        return Numbering.USUAL
    records["collective_seq"][~pairs] += 1
    return Numbering.FROM_ZERO


def start_at_zero(records: Records, pairs: Bools, batches: Bools) -> bool:
    """Whether the collectives of each group are numbered from 0.

    The sign is a group whose first collective has number 0 and whose second has 1. No backend's
    recorder gives number 0 to a collective, but some give it to members of a batch.
    """
    own, groups = records["collective_seq"][~pairs], records["group"][~pairs]
    batched = np.unique(records["group"][batches])
    for group in np.setdiff1d(groups[own == 0], batched).tolist():
        numbers = own[groups == group]
        if numbers[:2].tolist() == [0, 1] and (numbers[1:] > 0).all():
            return True
    return False


def are_process_wide(records: Records, *, numbered: bool, counted: bool) -> bool:
    """Whether ``collective_seq`` counts everything that the process issued, in any group.

    Then it equals the record's id, apart from a constant if the recorder was reset. Per-group
    counters start at 1, so with two groups at least one is behind the ids. With a single group, the
    sign is that the first record is present, or that the dump has no group counters (``counted``),
    which a backend's own recorder would have.
    """
    if not numbered or not len(records) or (records["p2p_seq"] > 0).any():
        return False
    ahead = records["collective_seq"] - records["record_id"]
    if (ahead != ahead[0]).any() or ahead[0] < 0 or (np.diff(records["record_id"]) <= 0).any():
        return False
    several = (records["group"] != records["group"][0]).any()
    if ahead[0] == 0:
        return bool(several) or not counted or int(records["record_id"][0]) == 0
    return (bool(several) and len(records) > 2) or (not counted and ahead[0] > 1)


def are_unset(records: Records) -> bool:
    """Whether the recorder has a field for sequence numbers but wrote 0 into all of them."""
    numbered = (records["collective_seq"] != 0) | (records["p2p_seq"] != 0)
    return len(records) > 0 and not numbered.any()


def number_groups(records: Records, pairs: Bools) -> None:
    """Give each group separate counters for collectives and for ``pairs``.

    If the start is lost, the numbers of collectives are unknown and become 0, which aligns with
    nothing.
    """
    whole = int(records["record_id"][0]) == 0 and int(records["collective_seq"][0]) == 0
    whole &= bool((np.diff(records["record_id"]) == 1).all())
    for group in np.unique(records["group"]).tolist():
        here = records["group"] == group
        numbers, counted = np.cumsum(here & ~pairs), np.cumsum(here & pairs)
        records["collective_seq"][here] = numbers[here] if whole else 0
        records["p2p_seq"][here] = counted[here]
