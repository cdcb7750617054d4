"""What the dispatcher's ``c10d::`` operators are, argument by argument.

Source: the operator schemas in torch (``torch/csrc/distributed/c10d/Ops.cpp``) and the names the
native recorder gives them. The dispatcher passes arguments by position and leaves off trailing ones
that have their default, so every position is looked up with its default.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpSpec:
    """Where an operator keeps what we record; positions are -1 where there is none."""

    operator: str
    name: str
    """The Flight Recorder's name, without the backend."""
    inputs: int = -1
    outputs: int = -1
    group: int = 1
    reduce_op: int = -1
    root: int = -1
    peer: int = -1
    is_async: int = -1
    timeout: int = -1
    input_splits: int = -1
    output_splits: int = -1
    p2p: bool = False
    sequence_step: int = 1
    """How far the operation advances the group's collective sequence number."""
    coalesced: bool = False
    """One entry stands for a whole batch."""
    blocking: bool = False
    """The operator itself returns only when the operation is done, and has no Work."""


_SPECS = (
    OpSpec("allreduce_", "all_reduce", 0, 0, 1, reduce_op=2, is_async=4, timeout=5),
    OpSpec(
        "allreduce_coalesced_",
        "allreduce_coalesced",
        0, 0, 1, reduce_op=2, is_async=3, timeout=4, coalesced=True,
    ),
    OpSpec("broadcast_", "broadcast", 0, 0, 1, root=2, is_async=4, timeout=5),
    OpSpec("reduce_", "reduce", 0, 0, 1, reduce_op=2, root=3, is_async=5, timeout=6),
    OpSpec("allgather_", "all_gather", 1, 0, 2, is_async=3, timeout=4),
    OpSpec("_allgather_base_", "_all_gather_base", 1, 0, 2, is_async=3, timeout=4),
    OpSpec("allgather_coalesced_", "all_gather_coalesced", 1, 0, 2, is_async=3, coalesced=True),
    OpSpec(
        "allgather_into_tensor_coalesced_",
        "all_gather_into_tensor_coalesced",
        1, 0, 2, is_async=3, coalesced=True,
    ),
    OpSpec("reduce_scatter_", "reduce_scatter", 1, 0, 2, reduce_op=3, is_async=4, timeout=5),
    OpSpec(
        "_reduce_scatter_base_", "_reduce_scatter_base", 1, 0, 2, reduce_op=3, is_async=4, timeout=5
    ),
    OpSpec(
        "reduce_scatter_tensor_coalesced_",
        "reduce_scatter_tensor_coalesced",
        1, 0, 2, reduce_op=3, is_async=4, timeout=5, coalesced=True,
    ),
    OpSpec("gather_", "gather", 1, 0, 2, root=3, is_async=4, timeout=5),
    OpSpec("scatter_", "scatter", 1, 0, 2, root=3, is_async=4, timeout=5),
    OpSpec("alltoall_", "all_to_all", 1, 0, 2, is_async=3, timeout=4),
    OpSpec(
        "alltoall_base_",
        "all_to_all",
        1, 0, 2, output_splits=3, input_splits=4, is_async=5, timeout=6,
    ),
    OpSpec("barrier", "barrier", -1, -1, 1, is_async=3, timeout=4),
    # Gloo's own counter moves by two: one for each of the exchanges it is made of.
    OpSpec(
        "monitored_barrier_",
        "monitored_barrier",
        -1, -1, 1, timeout=3, sequence_step=2, blocking=True,
    ),
    OpSpec("send", "send", 0, -1, 1, peer=2, p2p=True),
    OpSpec("recv_", "recv", -1, 0, 1, peer=2, p2p=True),
    OpSpec("recv_any_source_", "recv", -1, 0, 1, p2p=True),
)  # fmt: skip

SPECS = {spec.operator: spec for spec in _SPECS}


def spec_for(operator: str) -> OpSpec:
    """The spec of an operator; a new, unknown one is recorded by name alone."""
    known = SPECS.get(operator)
    if known is not None:
        return known
    return OpSpec(operator, operator.strip("_"), group=-1)
