"""Sequence numbers of a damaged file may be as far apart as integers allow."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from hangscope.diagnosis.records.mismatch import _positions
from hangscope.trace.model import RECORD_DTYPE


def test_numbers_whose_distance_overflows_get_places_of_their_own() -> None:
    records = np.zeros(4, RECORD_DTYPE)
    records["collective_seq"] = (-(2**62) - 5, 2**63 - 1, 7, 7)
    trace = SimpleNamespace(records=records)
    position, group_of, seq_of = _positions(trace, np.arange(4))  # type: ignore[arg-type]
    assert position[2] == position[3]
    assert len(set(position.tolist())) == 3
    assert seq_of[position].tolist() == records["collective_seq"].tolist()
    assert not group_of.any()
