"""Which of NCCL's functions a recorded operation of torch's calls."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hangscope.trace import operations
from hangscope.trace.model import Signature

FUNCTIONS = (
    "AllReduce", "Broadcast", "Reduce", "AllGather", "ReduceScatter", "Send", "Recv", "SendRecv",
    "AlltoAll", "Gather", "Scatter",
)  # fmt: skip
_BIT = {name: 1 << number for number, name in enumerate(FUNCTIONS)}
_BACKENDS = ("nccl", "rccl")
"""How the names of those backends of torch begin that call NCCL: torch 2.15's is ``nccl2``."""
_PAIRS = ("Send", "Recv", "SendRecv")
# A batch's own record is written after NCCL was called; its members' are written before.
_CALLED = {
    "all_reduce": ("AllReduce",),
    "barrier": ("AllReduce",),
    "broadcast": ("Broadcast",),
    "reduce": ("Reduce",),
    "all_gather": ("AllGather", "Broadcast"),  # tensors of different sizes: a broadcast each
    "_all_gather_base": ("AllGather",),
    "reduce_scatter": ("ReduceScatter", "Reduce"),
    "_reduce_scatter_base": ("ReduceScatter",),
    "all_to_all": (*_PAIRS, "AlltoAll"),
    "gather": (*_PAIRS, "Gather"),
    "scatter": (*_PAIRS, "Scatter"),
    "send": _PAIRS,
    "recv": _PAIRS,
    "allreduce_coalesced": ("AllReduce",),
    "all_gather_into_tensor_coalesced": ("AllGather",),
    "all_gather_coalesced": ("AllGather",),
    "reduce_scatter_tensor_coalesced": ("ReduceScatter",),
    "reduce_scatter_coalesced": ("ReduceScatter",),
}
_DTYPES = {
    "Int8": "Char", "Uint8": "Byte", "Int32": "Int", "Int64": "Long", "Float16": "Half",
    "Float32": "Float", "Float64": "Double", "Bfloat16": "BFloat16",
}  # fmt: skip


def function_bits(functions: npt.NDArray[np.bytes_]) -> npt.NDArray[np.int64]:
    """Per function's name one bit; 0 for a name that is not known."""
    names, index = np.unique(functions, return_inverse=True)
    bits = np.array([_BIT.get(_text(name), 0) for name in names], np.int64)
    return bits[index] if len(names) else np.zeros(0, np.int64)


def called_bits(signature: Signature) -> int:
    """The functions that an operation may call, one bit each."""
    if signature.backend and not signature.backend.startswith(_BACKENDS):
        return 0
    names = _CALLED.get(operations.family(signature.op), ())
    return sum(_BIT[name] for name in set(names))


def expected_count(signature: Signature) -> int:
    """The number of elements that NCCL is asked to reduce; -1 if it is not known or not counted in
    elements (NCCL moves what it only copies as bytes)."""
    name = operations.family(signature.op)
    if name in ("all_reduce", "reduce"):
        return _total(signature.input_sizes, signature.input_numel)
    if name == "_reduce_scatter_base":
        return _total(signature.output_sizes, signature.output_numel)
    return -1


def signature_of(function: bytes, datatype: bytes, count: int) -> Signature:
    """What a function of NCCL's is as an operation.

    Parameters
    ----------
    function, datatype:
        NCCL's names: ``AllReduce``, ``Float32``.
    count:
        Number of elements.
    """
    name, kind = _text(function), _text(datatype)
    dtype = _DTYPES.get(kind, kind)
    return Signature(
        op=operations.canonical(name),
        raw=f"nccl:{name}",
        backend="nccl",
        input_sizes=((count,),),
        input_dtypes=(dtype,) if dtype else None,
    )


def _total(sizes: tuple[tuple[int, ...], ...] | None, known: int | None) -> int:
    if sizes is None:
        return -1 if known is None else known
    return sum(math.prod(size) for size in sizes)


def _text(name: bytes) -> str:
    return name.decode("ascii", "replace")
