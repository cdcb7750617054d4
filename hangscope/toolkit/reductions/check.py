"""Compares the all-reduce that a job uses with the reference, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hangscope.toolkit.barriers.agreement import REFUSED, agree, compare, minority
from hangscope.toolkit.barriers.store_group import members, ready, store_group_of
from hangscope.toolkit.reductions.arithmetic import ORDERED, refusal
from hangscope.toolkit.reductions.chunks import reduce_chunk
from hangscope.toolkit.tensors import checksum

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class ReductionCheck:
    """How the live all-reduce compares with the reference (the sum in group-rank order).

    ``max_rel_diff`` is relative to the larger of the two values. ``within_tolerance`` allows for
    the rounding that another order of additions may cause: (n - 1) units of the dtype times the
    sum of the absolute values. ``disagreeing_ranks`` (global) hold other bits than the majority;
    without a majority, all ranks. Only the fields about checksums concern all members; the others
    concern this rank.
    """

    bitwise_equal: bool
    max_abs_diff: float
    max_rel_diff: float
    mismatch_count: int
    elements: int
    within_tolerance: bool
    disagreeing_ranks: tuple[int, ...]
    checksums: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all members hold the same bits, and these are the sum up to rounding."""
        return self.within_tolerance and not self.disagreeing_ranks


def check_all_reduce(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    op: str = "sum",
    *,
    timeout: float = 300.0,
    chunk_bytes: int = CHUNK_BYTES,
) -> ReductionCheck | None:
    """Reduce copies of ``tensor`` both ways and compare; ``tensor`` itself is not changed.

    Parameters
    ----------
    tensor:
        What to reduce; as for `deterministic_all_reduce`.
    group:
        The process group; ``None`` is the default group.
    op:
        ``sum`` or ``mean``.
    timeout:
        Seconds to wait for the other members.
    chunk_bytes:
        Memory that the reference may use at a time.

    Returns
    -------
    ReductionCheck or None
        The comparison; ``None`` with a warning if nothing is initialised.

    Raises
    ------
    Disagreement
        (a ``ValueError``) arguments differ or are rejected; on all members.
    BarrierTimeout
        A member did not come.
    """
    import torch
    import torch.distributed as dist

    reason = refusal(tensor, op, force_fp32=True)
    if not ready("check_all_reduce", group):
        if reason:
            raise ValueError(f"check_all_reduce: {reason}")
        return None
    store_group = store_group_of(group, "check")
    say = f"{op} of {tensor.dtype} {tuple(tensor.shape)}, chunks of {chunk_bytes} bytes"
    agree(
        store_group,
        f"{REFUSED}{reason}" if reason else say,
        timeout_s=timeout,
        what="check_all_reduce",
    )
    if reason:
        raise ValueError(f"check_all_reduce: {reason}")
    size = len(members(group))
    with torch.no_grad():
        source = tensor.detach().contiguous().view(-1)
        live = source.clone()
        real = torch.view_as_real(live) if live.is_complex() else live
        if real.numel():
            dist.all_reduce(real, group=group)
        if op == "mean":
            live /= size
        result = Comparison()
        step = max(1, chunk_bytes // (size * _wide(source.dtype).itemsize))
        for start in range(0, source.numel(), step):
            chunk = source[start : start + step].to(_wide(source.dtype))
            exact = reduce_chunk(chunk, ORDERED, group, size)
            scale = reduce_chunk(chunk.abs(), ORDERED, group, size)
            if op == "mean":
                exact, scale = exact / size, scale / size
            result.add(live[start : start + step], exact, scale, size)
    said = compare(
        store_group, checksum([live]), timeout_s=timeout, what="check_all_reduce: checksums"
    )
    return ReductionCheck(
        bitwise_equal=result.mismatches == 0,
        max_abs_diff=result.max_abs,
        max_rel_diff=result.max_rel,
        mismatch_count=result.mismatches,
        elements=source.numel(),
        within_tolerance=result.within,
        disagreeing_ranks=minority(said),
        checksums=said,
    )


class Comparison:
    """Accumulates differences chunk by chunk."""

    def __init__(self) -> None:
        self.mismatches = 0
        self.max_abs = 0.0
        self.max_rel = 0.0
        self.within = True

    def add(self, live: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor, size: int) -> None:
        """Compare one chunk; ``scale`` is the sum of absolute values, ``size`` the members."""
        import torch

        reference = exact.to(live.dtype)
        # Bitwise: identical NaNs are equal, zeros of different sign are not.
        same = _bits(live) == _bits(reference)
        if live.is_complex():
            same = same.view(-1, 2).all(dim=1)
        same |= torch.isnan(live) & torch.isnan(reference)
        self.mismatches += int((~same).sum())
        if bool(same.all()):
            return
        if not (live.is_floating_point() or live.is_complex()):
            double = live[~same].double() - reference[~same].double()
            self.max_abs = max(self.max_abs, float(double.abs().max()))
            top = torch.maximum(live[~same].double().abs(), reference[~same].double().abs())
            self.max_rel = max(self.max_rel, float((double.abs() / top).max()))
            self.within = False  # integers are never rounded
            return
        complex_ = live.is_complex()
        high = torch.complex128 if complex_ else torch.float64
        a, b, s = live.to(high), reference.to(high), scale.to(torch.float64)
        difference = (a - b).abs()[~same]
        top = torch.maximum(a.abs(), b.abs())[~same]
        relative = torch.where(top > 0, difference / top, torch.zeros_like(top))
        unit = torch.finfo(live.dtype).eps
        allowed = (s[~same] * unit * max(1, size - 1)).clamp_min(torch.finfo(live.dtype).tiny)
        self.max_abs = max(self.max_abs, _largest(difference))
        self.max_rel = max(self.max_rel, _largest(relative))
        self.within = self.within and bool((difference <= allowed).all())


def _largest(values: torch.Tensor) -> float:
    """The maximum; infinite if any value is NaN (one side is NaN and the other is not)."""
    import torch

    return float(torch.nan_to_num(values, nan=float("inf")).max())


def _wide(dtype: torch.dtype) -> torch.dtype:
    from hangscope.toolkit.reductions.arithmetic import accumulation_dtype

    return accumulation_dtype(dtype, force_fp32=True)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    real = torch.view_as_real(tensor).reshape(-1) if tensor.is_complex() else tensor
    views = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return real.contiguous().view(views[real.element_size()])
