"""Which operations of a rank have a fixed order: threads may run in parallel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hangscope.trace.model import Records


def in_issue_order(part: Records) -> npt.NDArray[np.bool_]:
    """Given a rank's operations up to some last one, those whose order relative to it is fixed.

    Operations of threads that share no group with that thread (such as a checkpoint written in the
    background) interleave at any time, differently in every step and on every rank.
    """
    if not len(part) or (part["thread"] == part["thread"][0]).all():
        return np.ones(len(part), np.bool_)
    pairs = {*zip(part["thread"].tolist(), part["group"].tolist(), strict=True)}
    threads, groups = {int(part["thread"][-1])}, {int(part["group"][-1])}
    while found := {(t, g) for t, g in pairs if t in threads or g in groups}:
        threads |= {t for t, _ in found}
        groups |= {g for _, g in found}
        pairs -= found
    return np.isin(part["thread"], sorted(threads))
