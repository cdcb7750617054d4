"""Canonical operation names for the spellings of all sources."""

from __future__ import annotations

import pytest

from hangscope.trace.operations import OperationName, parse


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("nccl:all_reduce", OperationName("nccl", "all_reduce", -1, -1)),
        ("c10d::allreduce_", OperationName("", "all_reduce", -1, -1)),
        ("vendor:lib:all_reduce", OperationName("vendor:lib", "all_reduce", -1, -1)),
        ("vendor:lib:ALLGATHER", OperationName("vendor:lib", "all_gather", -1, -1)),
        ("vendor:lib:send 0->1", OperationName("vendor:lib", "send", 0, 1)),
        ("custom:ring:step", OperationName("custom", "ring:step", -1, -1)),
        ("nccl:recv 1<-?", OperationName("nccl", "recv", -1, 1)),
        ("all_reduce", OperationName("", "all_reduce", -1, -1)),
    ],
)
def test_recorded_name_is_parsed(raw: str, expected: OperationName) -> None:
    assert parse(raw) == expected
