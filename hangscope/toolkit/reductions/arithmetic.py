"""The arithmetic of a reference reduction: pure functions on local tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TORCH = "torch_all_reduce"
ORDERED = "ordered_rank_reference"
TREE = "balanced_tree"
MODES = (TORCH, ORDERED, TREE)


def ordered_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """``((p0 + p1) + p2) + ...``, in group-rank order."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def tree_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Neighbours first: ``(p0 + p1) + (p2 + p3)``; an odd one goes up a level unchanged.

    The rounding error grows with the logarithm of the number of parts rather than linearly.
    """
    level = list(parts)
    if len(level) == 1:
        return level[0].clone()
    while len(level) > 1:
        pairs = [level[i] + level[i + 1] for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0]


def accumulation_dtype(dtype: torch.dtype, force_fp32: bool) -> torch.dtype:
    """The dtype to accumulate in: at least float32 if asked for, never less than ``dtype``.

    Integers are exact (modulo their width) in their own dtype, so the option has no effect on them.
    """
    import torch

    if force_fp32 and dtype.is_floating_point and dtype.itemsize < 4:
        return torch.float32
    return dtype


def refusal(tensor: torch.Tensor, op: str, force_fp32: bool) -> str:
    """Why this tensor cannot be reduced; empty if it can."""
    import torch

    if op not in ("sum", "mean"):
        return f"op={op!r} is neither 'sum' nor 'mean'"
    if not isinstance(tensor, torch.Tensor):
        return f"a tensor is needed, not {type(tensor).__name__}"
    return _refused_kind(tensor) or _refused_dtype(tensor.dtype, op, force_fp32) or _shared(tensor)


def _refused_kind(tensor: torch.Tensor) -> str:
    """Why a tensor of this kind has no values to add up; empty for a plain one."""
    import torch

    if hasattr(tensor, "to_local"):
        return "a DTensor has a layout of its own: reduce tensor.to_local() in the right group"
    if tensor.layout != torch.strided:
        return f"layout {tensor.layout} is not supported: only dense tensors are"
    if tensor.is_meta:
        return "a meta tensor has no values"
    return "a quantized tensor has no sum: dequantize it first" if tensor.is_quantized else ""


def _refused_dtype(dtype: torch.dtype, op: str, force_fp32: bool) -> str:
    """Why values of this dtype cannot be reduced this way; empty if they can."""
    import torch

    if dtype == torch.bool:
        return "bool has no sum: convert it to an integer dtype first"
    if dtype == torch.complex32:
        return "complex32 is not supported: use complex64"
    if op == "mean" and not (dtype.is_floating_point or dtype.is_complex):
        return f"the mean of {dtype} would be cut to integers: convert it to a float dtype first"
    if dtype.is_floating_point and dtype.itemsize < 2 and not force_fp32:
        return f"{dtype} cannot be added up in itself: set force_fp32_accumulation"
    return ""


def _shared(tensor: torch.Tensor) -> str:
    """Why a result cannot be written into the tensor; empty if it can."""
    if _overlaps(tensor):
        return "elements share memory (an expanded view), so the result cannot be written back"
    return ""


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory; certain for expanded views."""
    if tensor.numel() < 2:
        return False
    dims = sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    reach = 0
    for stride, size in dims:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
