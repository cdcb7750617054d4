"""The kind of operation of each record: predicates evaluated once per signature."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.observability import runs_on_host
from hangscope.diagnosis.records.agreement import FROM_ROOT, ONE_SIDED, family
from hangscope.trace.model import Records, Signature, Trace


def records_where(
    trace: Trace, holds: Callable[[Signature], bool], rows: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.bool_]:
    """Per record, or per record of ``rows``: whether a predicate holds for its signature."""
    # Records without a signature (-1) index the last entry.
    table = np.array([*map(holds, trace.signatures), False], bool)
    signatures = trace.records["signature"]
    found: npt.NDArray[np.bool_] = table[signatures if rows is None else signatures[rows]]
    return found


def is_sending(signature: Signature) -> bool:
    """Whether the operation is a send."""
    return signature.op.startswith("send") or signature.op == "isend"


def groups_with(trace: Trace, rows: npt.NDArray[np.bool_]) -> frozenset[int]:
    """The groups of these records."""
    return frozenset(np.unique(trace.records["group"][rows]).tolist())


def is_one_sided(signature: Signature) -> bool:
    """Whether a member may finish the operation alone."""
    return family(signature.op) in ONE_SIDED


def comes_from_root(signature: Signature) -> bool:
    """Whether all other members wait for the root."""
    return family(signature.op) in FROM_ROOT


def same_backend(trace: Trace, row: int, other: int) -> bool:
    """Whether two operations of a group ran on the same backend; a group may have several."""
    of = trace.records["signature"]
    one, two = trace.signatures[int(of[row])], trace.signatures[int(of[other])]
    return one.backend == two.backend


def is_on_host(signature: Signature) -> bool:
    """Whether the operation runs on the host."""
    return runs_on_host(signature.backend)


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
