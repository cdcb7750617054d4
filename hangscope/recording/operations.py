"""The arguments of the dispatcher's ``c10d::`` operators.

Arguments are found by name in the schema of the installed torch: their positions have changed
between releases (``async_op`` was added late), their names have not. The dispatcher passes them by
position and omits trailing ones that have their default.

Sources: the operator schemas (``torch/csrc/distributed/c10d/Ops.cpp``) and the names the native
recorder gives the operations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

from hangscope.ring.layout import SlotFlag


@dataclass(frozen=True, slots=True)
class OpSpec:
    """Positions of the arguments that we record; -1 for one that the operator does not have."""

    operator: str
    name: str
    """The Flight Recorder's name, without the backend."""
    inputs: int = -1
    outputs: int = -1
    group: int = -1
    """-1 means unknown: take the first argument that is a process group."""
    reduce_op: int = -1
    root: int = -1
    peer: int = -1
    tag: int = -1
    is_async: int = -1
    timeout: int = -1
    input_splits: int = -1
    output_splits: int = -1
    scalars: int = -1
    """From this position on, all arguments are plain numbers, and there are no relevant numbers
    before it; -1 if the operator is not like that."""
    p2p: bool = False
    sequence_step: int = 1
    """How far the operation advances the group's collective sequence number."""
    blocking: bool = False
    """The operator returns only when the operation is done, and has no Work."""
    gloo_counts: str = ""
    """How many all-reduces Gloo implements it with, and counts: ``"one"``, or one for each of the
    group's ``"members"`` or of the ``"tensors"``. The Work of several cannot be polled."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """An operator described by the names of its arguments."""

    name: str
    inputs: str = ""
    outputs: str = ""
    peer: str = ""
    p2p: bool = False
    sequence_step: int = 1
    blocking: bool = False
    gloo_counts: str = ""


_SHAPES = {
    "allreduce_": _Shape("all_reduce", "tensors", "tensors"),
    "allreduce_coalesced_": _Shape("allreduce_coalesced", "tensors", "tensors"),
    "broadcast_": _Shape("broadcast", "tensors", "tensors"),
    "reduce_": _Shape("reduce", "tensors", "tensors"),
    "allgather_": _Shape("all_gather", "input_tensors", "output_tensors"),
    "_allgather_base_": _Shape("_all_gather_base", "input_tensor", "output_tensor"),
    "allgather_coalesced_": _Shape("all_gather_coalesced", "input_list", "output_lists"),
    "allgather_into_tensor_coalesced_": _Shape(
        "all_gather_into_tensor_coalesced", "inputs", "outputs"
    ),
    "reduce_scatter_": _Shape(
        "reduce_scatter", "input_tensors", "output_tensors", gloo_counts="members"
    ),
    "_reduce_scatter_base_": _Shape(
        "_reduce_scatter_base", "input_tensor", "output_tensor", gloo_counts="one"
    ),
    "reduce_scatter_tensor_coalesced_": _Shape(
        "reduce_scatter_tensor_coalesced", "inputs", "outputs", gloo_counts="tensors"
    ),
    "gather_": _Shape("gather", "input_tensors", "output_tensors"),
    "scatter_": _Shape("scatter", "input_tensors", "output_tensors"),
    "alltoall_": _Shape("all_to_all", "input_tensors", "output_tensors"),
    "alltoall_base_": _Shape("all_to_all", "input", "output"),
    "barrier": _Shape("barrier"),
    # Gloo's own counter moves by two: one for each message a member exchanges with rank 0.
    "monitored_barrier_": _Shape("monitored_barrier", sequence_step=2, blocking=True),
    "send": _Shape("send", "tensors", peer="dst", p2p=True),
    "recv_": _Shape("recv", "", "tensors", peer="src", p2p=True),
    "recv_any_source_": _Shape("recv", "", "tensors", p2p=True),
}

_SCALARS = frozenset({"root_rank", "root_tensor", "async_op", "asyncOp", "timeout"})


def spec_for(operator: str, arguments: Sequence[str]) -> OpSpec:
    """The spec of an operator whose schema has these argument names.

    An unknown, newer operator is recorded by its name and its arguments of well-known names.
    """
    at = {name: position for position, name in enumerate(arguments)}

    def position(*names: str) -> int:
        return next((at[name] for name in names if name in at), -1)

    common = OpSpec(
        operator,
        operator.strip("_"),
        group=position("process_group"),
        reduce_op=position("reduce_op"),
        root=position("root_rank"),
        tag=position("tag"),
        is_async=position("async_op", "asyncOp"),
        timeout=position("timeout"),
        input_splits=position("input_split_sizes"),
        output_splits=position("output_split_sizes"),
    )
    shape = _SHAPES.get(operator)
    if shape is None:
        return common
    numbers = _scalars(arguments)
    hidden = 0 <= min((at[name] for name in at if name in _SCALARS), default=numbers) < numbers
    has_more = shape.p2p or common.input_splits >= 0 or hidden
    return replace(
        common,
        name=shape.name,
        scalars=-1 if has_more else numbers,
        inputs=position(shape.inputs),
        outputs=position(shape.outputs),
        peer=position(shape.peer),
        p2p=shape.p2p,
        sequence_step=shape.sequence_step,
        blocking=shape.blocking,
        gloo_counts=shape.gloo_counts,
    )


def _scalars(arguments: Sequence[str]) -> int:
    """Position at which the trailing plain numbers among the arguments begin."""
    start = len(arguments)
    while start and arguments[start - 1] in _SCALARS:
        start -= 1
    return start


def blocking_flag_reader() -> Callable[[FrameType], int]:
    """Make a function that tells from the caller's frame whether a send or recv is blocking.

    ``send`` and ``isend`` call the same operator, so only the calling function tells. Returns the
    flag ``BLOCKING``, ``ASYNC``, or 0 for any other caller.
    """
    import torch.distributed as dist

    loose, blocking = _codes(dist, "isend", "irecv"), _codes(dist, "send", "recv")
    asynchronous, waits = int(SlotFlag.ASYNC), int(SlotFlag.BLOCKING)

    def manner(frame: FrameType) -> int:
        if frame.f_code in blocking:
            return waits
        if frame.f_code not in loose:
            return 0
        caller = frame.f_back  # in newer torch ``send`` is ``isend`` plus a wait
        return waits if caller is not None and caller.f_code in blocking else asynchronous

    return manner


def _codes(module: Any, *names: str) -> frozenset[CodeType]:
    functions = (inspect.unwrap(getattr(module, name)) for name in names if hasattr(module, name))
    return frozenset(f.__code__ for f in functions if hasattr(f, "__code__"))
