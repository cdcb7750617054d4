"""What the members of a group must agree on, operation by operation.

The `Terms` of a signature hold only what must be equal on every member. Whatever may legally differ
(an uneven all_to_all, the root's list in a gather, the same element count in another shape) is left
out. ``None`` means that the source does not say; it is compatible with anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hangscope.diagnosis.observability import runs_on_host
from hangscope.trace.model import Signature

FAMILIES = {
    "_allreduce": "all_reduce",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_allgather_base": "all_gather",
    "allgather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_reduce_barrier": "barrier",
    "all_gather_into_tensor_coalesced": "all_gather_coalesced",
    "_all_gather_base_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_coalesced",
    "allgather_coalesced": "all_gather_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_coalesced",
}
"""Names of operations that backends execute identically: mixing them causes no hang."""

"""Backends whose operations run on the caller's thread of execution, so waiting for one blocks the
caller. They match sends and receives by tag; devices ignore tags."""
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Operations with a root."""

FROM_ROOT = frozenset({"broadcast", "scatter"})
"""Operations in which all other members receive from the root."""

ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter", "send", "recv"})
"""A member may finish these before all others have arrived."""

_NAMELESS = ("", "unknown")
"""Operation names that the source has lost: they may stand for any operation."""
_COALESCED_IN = frozenset({"all_reduce_coalesced", "all_gather_coalesced"})
_COALESCED_OUT = frozenset({"reduce_scatter_coalesced"})
_BY_INPUT = _COALESCED_IN | {"all_reduce", "reduce", "broadcast", "all_gather", "gather"}
_BY_OUTPUT = _COALESCED_OUT | {"reduce_scatter", "scatter"}
WITH_REDUCTION = frozenset(
    {
        "all_reduce",
        "reduce",
        "reduce_scatter",
        "all_reduce_coalesced",
        "reduce_scatter_coalesced",
    }
)


@dataclass(frozen=True, slots=True)
class Terms:
    """What must be equal: operation family, element count per member, dtype, reduce op, and whether
    the tensors are on the host or on a device."""

    op: str
    numel: int | None = None
    dtype: str | None = None
    reduce_op: str | None = None
    batch: int = 0
    """A hash of what is inside a coalesced batch; 0: not recorded."""
    on_host: bool | None = None

    @property
    def known(self) -> int:
        """How many terms are known; the most specific ones make the best reference."""
        return sum(x is not None for x in (self.numel, self.dtype, self.reduce_op))


def family(op: str) -> str:
    """The name under which interchangeable operations are compared."""
    return FAMILIES.get(op, op)


def numel(sizes: tuple[tuple[int, ...], ...] | None) -> int | None:
    """Elements over all tensors; None if sizes are unknown or there are none."""
    if not sizes:
        return None
    return sum(prod(size) for size in sizes)


def input_numel(signature: Signature) -> int | None:
    """Number of input elements."""
    known = numel(signature.input_sizes)
    return signature.input_numel if known is None else known


def output_numel(signature: Signature) -> int | None:
    """Number of output elements."""
    known = numel(signature.output_sizes)
    return signature.output_numel if known is None else known


def terms(signature: Signature) -> Terms:
    """What ``signature`` requires of the other members."""
    op = family(signature.op)
    if op not in _BY_INPUT | _BY_OUTPUT | {"all_to_all"}:
        return Terms(op)
    count: int | None = None
    if op in _BY_INPUT:
        count = input_numel(signature)
        if count is None and op != "gather" and op != "all_gather":
            count = output_numel(signature)
        if op == "all_gather" and _uneven(signature.output_sizes):
            count = output_numel(signature)
    elif op in _BY_OUTPUT:
        count = output_numel(signature)
        if op == "reduce_scatter" and _uneven(signature.input_sizes):
            count = input_numel(signature)
    elif _in_even_parts(signature):
        count = input_numel(signature)
    dtypes = signature.input_dtypes or signature.output_dtypes
    if op == "scatter":
        dtypes = signature.output_dtypes or signature.input_dtypes
    dtype = dtypes[0] if dtypes and len(set(dtypes)) == 1 else None
    reduction = signature.reduce_op if op in WITH_REDUCTION else None
    on_host = runs_on_host(signature.backend) if signature.backend else None
    return Terms(op, count, dtype, reduction.upper() if reduction else None, on_host=on_host)


def _in_even_parts(signature: Signature) -> bool:
    """Whether one tensor is exchanged in equal parts: no split list was given."""
    given = (signature.input_splits, signature.output_splits)
    sizes = (signature.input_sizes, signature.output_sizes)
    return given == ((), ()) and all(s is not None and len(s) == 1 for s in sizes)


def _uneven(sizes: tuple[tuple[int, ...], ...] | None) -> bool:
    return sizes is not None and len({prod(size) for size in sizes}) > 1


def disagreement(a: Terms, b: Terms) -> str | None:
    """The first incompatible term: ``op``, ``dtype``, ``numel``, ``reduce_op`` or ``device``.

    None if the two can be one operation of one group.
    """
    if _barrier_by_another_name(a, b) or _barrier_by_another_name(b, a):
        return None
    if a.op in _NAMELESS or b.op in _NAMELESS:
        return None
    if a.op != b.op or (a.batch and b.batch and a.batch != b.batch):
        return "op"
    if a.dtype is not None and b.dtype is not None and a.dtype != b.dtype:
        return "dtype"
    if a.numel is not None and b.numel is not None and a.numel != b.numel:
        return "numel"
    if a.reduce_op and b.reduce_op and a.reduce_op != b.reduce_op:
        return "reduce_op"
    if a.on_host is not None and b.on_host is not None and a.on_host != b.on_host:
        return "device"
    return None


def _barrier_by_another_name(a: Terms, b: Terms) -> bool:
    """Whether ``a`` is a barrier and ``b`` could be one under the name NCCL's watchdog gives it.

    A barrier on a device is an all-reduce of one element. The recorder identifies it by name; the
    watchdog neither does so nor states the element's dtype.
    """
    return a.op == "barrier" and b.op == "all_reduce" and b.numel == 1 and b.dtype is None


def aspect_of(a: Terms, b: Terms, roots: tuple[int, int]) -> str | None:
    """As `disagreement`, or ``root`` if only the roots differ; an unknown root is -1."""
    found = disagreement(a, b)
    if found is None and a.op in ROOTED and min(roots) >= 0 and roots[0] != roots[1]:
        return "root"
    return found


def group_size(signature: Signature) -> int | None:
    """Number of group members, if the operation's sizes reveal it."""
    inputs, outputs = signature.input_sizes, signature.output_sizes
    if signature.op in ("all_gather", "gather") and outputs and len(outputs) > 1:
        return len(outputs)
    if signature.op in ("reduce_scatter", "scatter") and inputs and len(inputs) > 1:
        return len(inputs)
    small, large = input_numel(signature), output_numel(signature)
    if signature.op == "_reduce_scatter_base":
        small, large = large, small
    if signature.op in ("_all_gather_base", "_reduce_scatter_base") and small and large:
        return large // small if large % small == 0 else None
    return None
