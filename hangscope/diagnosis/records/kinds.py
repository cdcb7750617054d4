"""What kind of operation each record is: questions about signatures, asked once of each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.records.agreement import ONE_SIDED, family
from hangscope.trace.model import Signature, Trace

HOST_BACKENDS = frozenset({"gloo", "mpi"})
"""Backends whose operations run on the caller's time: waiting for one holds the caller up. They
match sends and receives by tag; devices ignore tags."""


def which(
    trace: Trace, holds: Callable[[Signature], bool], rows: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.bool_]:
    """Per record, or per record of ``rows``: whether something holds of its signature."""
    # Records without a signature (-1) find the last entry.
    table = np.array([*map(holds, trace.signatures), False], bool)
    signatures = trace.records["signature"]
    found: npt.NDArray[np.bool_] = table[signatures if rows is None else signatures[rows]]
    return found


def is_sending(signature: Signature) -> bool:
    """Whether the operation is a sending half."""
    return signature.op.startswith("send") or signature.op == "isend"


def is_one_sided(signature: Signature) -> bool:
    """Whether a member may finish the operation alone."""
    return family(signature.op) in ONE_SIDED


def is_on_host(signature: Signature) -> bool:
    """Whether the operation runs on its caller's time (see `HOST_BACKENDS`)."""
    return signature.backend in HOST_BACKENDS
