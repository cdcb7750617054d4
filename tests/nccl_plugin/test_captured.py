"""Records of operations that a CUDA graph has captured, which run only in its replays."""

from __future__ import annotations

import numpy as np

from hangscope.trace.model import RECORD_DTYPE, Flag, Group, Signature, State
from hangscope.trace.nccl.matching import Tables
from hangscope.trace.nccl.merge import end_captured

SIGNATURES = (Signature("all_reduce", backend="nccl"), Signature("all_reduce", backend="gloo"))
TABLES = Tables.of(SIGNATURES, (Group("0", "default", (0, 1)), Group("1", "tp", (0, 1))))


def test_what_was_captured_is_over_and_nothing_else() -> None:
    records = np.zeros(5, RECORD_DTYPE)
    records["created_ns"] = [10, 20, 30, 40, 50]
    records["group"] = [0, 0, 1, 0, 0]
    records["signature"] = [0, 0, 0, 1, 0]
    records["flags"] = int(Flag.UNOBSERVED)
    rows = np.array([0, 4, -1])  # NCCL was called for the first and the last, and by somebody else
    end_captured(records, rows, TABLES)
    # Not over: what NCCL runs, what may wait for its communicator, what is none of NCCL's.
    assert (records["state"] == State.COMPLETED).tolist() == [False, True, False, False, False]
    assert records["completed_ns"].tolist() == [0, 20, 0, 0, 0]
