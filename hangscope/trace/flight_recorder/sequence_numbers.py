"""What the sequence numbers of a dump count.

A backend's own recorder numbers a group's collectives from 1, and its sends and receives apart from
them. Other recorders count everything that the process issues, from 0 (torchcomms), write 0 into
every entry (torch's CUPTI monitor), or begin each group at 0. Afterwards all are numbered from 1; a
number of 0 stands for none and aligns with nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import Records

Bools = npt.NDArray[np.bool_]


def settle_numbers(
    records: Records, pairs: Bools, batches: Bools, *, numbered: bool, counted: bool
) -> bool:
    """Number each group's collectives from 1, whatever the recorder counted; in place.

    Parameters
    ----------
    records:
        One rank's records in order of issue.
    pairs, batches:
        Per record: one half of a pair; what closes a batch.
    numbered:
        The entries have ids.
    counted:
        The dump has counters of its groups, as a backend's own recorder writes them.

    Returns
    -------
    bool
        Whether the dump's counters of groups, if there are any, count the same as its entries now.
    """
    if one_for_all(records, numbered=numbered, counted=counted) or (
        numbered and numbers_unset(records)
    ):
        number_groups(records, pairs | batches)
        return True
    if not from_zero(records, pairs, batches):
        return True
    records["collective_seq"][~pairs] += 1
    return False


def from_zero(records: Records, pairs: Bools, batches: Bools) -> bool:
    """Whether the collectives of each group are numbered from 0 on.

    It shows in a group whose first collective has number 0 and the second 1. No recorder of a
    backend gives a collective that number, but some of them what stands in a batch.
    """
    own, groups = records["collective_seq"][~pairs], records["group"][~pairs]
    batched = np.unique(records["group"][batches])
    for group in np.setdiff1d(groups[own == 0], batched).tolist():
        numbers = own[groups == group]
        if numbers[:2].tolist() == [0, 1] and (numbers[1:] > 0).all():
            return True
    return False


def one_for_all(records: Records, *, numbered: bool, counted: bool) -> bool:
    """Whether ``collective_seq`` counts everything that the process issued, in whatever group.

    Then it is the record's id, up to what a reset of the recorder has set back. A counter of one
    group starts at 1, so that of two groups at least one stays behind the ids. Of a single group
    it shows where the first record is there, or where the dump has counters for no group
    (``counted``), as a backend's own recorder has for each that it has recorded.
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


def numbers_unset(records: Records) -> bool:
    """Whether the recorder has a field for sequence numbers and wrote 0 into every one."""
    numbered = (records["collective_seq"] != 0) | (records["p2p_seq"] != 0)
    return len(records) > 0 and not numbered.any()


def number_groups(records: Records, pairs: Bools) -> None:
    """Give each group counters of its own, one for collectives and one for ``pairs``.

    Where the beginning is lost the numbers of collectives cannot be had: they become 0, which
    aligns with nothing.
    """
    whole = int(records["record_id"][0]) == 0 and int(records["collective_seq"][0]) == 0
    whole &= bool((np.diff(records["record_id"]) == 1).all())
    for group in np.unique(records["group"]).tolist():
        here = records["group"] == group
        numbers, counted = np.cumsum(here & ~pairs), np.cumsum(here & pairs)
        records["collective_seq"][here] = numbers[here] if whole else 0
        records["p2p_seq"][here] = counted[here]
