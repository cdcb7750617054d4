"""An all-reduce whose result depends only on its inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hangscope.toolkit.barriers.agreement import REFUSED, Disagreement, agree
from hangscope.toolkit.barriers.barrier import check_timeout
from hangscope.toolkit.barriers.store_group import members, ready, store_group_of
from hangscope.toolkit.reductions.arithmetic import (
    MODES,
    ORDERED,
    accumulation_dtype,
    refusal,
)
from hangscope.toolkit.reductions.check import ReductionCheck, check_all_reduce
from hangscope.toolkit.reductions.chunks import reduce_chunk
from hangscope.toolkit.reductions.deterministic_env import configure_deterministic_nccl_env

if TYPE_CHECKING:
    import torch

__all__ = [
    "MODES",
    "DeterministicAllReduceConfig",
    "Disagreement",
    "ReductionCheck",
    "check_all_reduce",
    "configure_deterministic_nccl_env",
    "deterministic_all_reduce",
]

CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class DeterministicAllReduceConfig:
    """How to reduce. Every option applies in every mode, or is rejected.

    Attributes:
        mode: ``ordered_rank_reference`` adds in the order of group ranks; ``balanced_tree`` adds
            neighbours first; both give the same bits on every backend, run and member.
            ``torch_all_reduce`` is the backend's own all-reduce: the same on all members, but its
            order is the backend's.
        op: ``sum`` or ``mean``.
        group: the process group; ``None`` is the default group.
        force_fp32_accumulation: add up float16, bfloat16 and float8 in float32 and round once at
            the end, in every mode. float32 and wider are never narrowed; integers are exact anyway.
        chunk_bytes: memory that the gathered parts of all members may take at a time.
        async_op: not supported, because the result is written back after the collective.
        timeout: seconds to wait for the other members before anything is sent.
        check_arguments: compare dtype, shape and options of all members through the store first.
    """

    mode: str = ORDERED
    op: str = "sum"
    group: Any = None
    force_fp32_accumulation: bool = True
    chunk_bytes: int = CHUNK_BYTES
    async_op: bool = False
    timeout: float = 300.0
    check_arguments: bool = True


def deterministic_all_reduce(
    tensor: torch.Tensor, config: DeterministicAllReduceConfig | None = None, **options: Any
) -> torch.Tensor:
    """Reduce ``tensor`` over the group, in place, and return it.

    Before anything is sent, the members compare their arguments through the job's store. If they
    differ, or one member must reject its own, all members raise and no collective is left waiting.
    Non-contiguous tensors are copied and written back. Without an initialised process group, or
    outside ``group``, it warns and returns the tensor unchanged.

    Parameters
    ----------
    tensor:
        Any dense float, complex or integer tensor; changed in place, without autograd.
    config:
        How to reduce.
    options:
        Fields of `DeterministicAllReduceConfig` to change.

    Raises
    ------
    Disagreement
        (a ``ValueError``) arguments differ or are rejected; on all members.
    BarrierTimeout
        A member did not come.
    TypeError
        An option that does not exist.
    """
    config = replace(config or DeterministicAllReduceConfig(), **options)
    reason = _refusal(tensor, config)
    if not ready("deterministic_all_reduce", config.group):
        if reason:
            raise ValueError(f"deterministic_all_reduce: {reason}")
        return tensor
    if config.check_arguments:
        store_group = store_group_of(config.group, "reduce")
        wait = config.timeout if not _bad_timeout(config.timeout) else 300.0
        agree(
            store_group,
            f"{REFUSED}{reason}" if reason else _signature(tensor, config),
            timeout_s=wait,
            what="deterministic_all_reduce",
        )
    if reason:  # a group of one, or arguments that are not compared
        raise ValueError(f"deterministic_all_reduce: {reason}")
    ranks = members(config.group)
    if len(ranks) > 1 and tensor.numel():
        _reduce(tensor.detach(), config, len(ranks))
    return tensor


def _refusal(tensor: torch.Tensor, config: DeterministicAllReduceConfig) -> str:
    if config.mode not in MODES:
        return f"mode={config.mode!r} is none of {', '.join(MODES)}"
    if config.async_op:
        return "async_op=True is not supported: the result is written back after the collective"
    if isinstance(config.chunk_bytes, bool) or not isinstance(config.chunk_bytes, int):
        return f"chunk_bytes={config.chunk_bytes!r} is not an integer"
    if config.chunk_bytes < 1:
        return f"chunk_bytes={config.chunk_bytes}: at least 1 is needed"
    bad = _bad_timeout(config.timeout)
    return bad or refusal(tensor, config.op, config.force_fp32_accumulation)


def _bad_timeout(timeout: float) -> str:
    try:
        check_timeout(timeout)
    except ValueError as error:
        return str(error)
    return ""


def _signature(tensor: torch.Tensor, config: DeterministicAllReduceConfig) -> str:
    return (
        f"{config.mode} {config.op} of {tensor.dtype} {tuple(tensor.shape)} on "
        f"{tensor.device.type}, fp32 accumulation {config.force_fp32_accumulation}, "
        f"chunks of {config.chunk_bytes} bytes"
    )


def _reduce(tensor: torch.Tensor, config: DeterministicAllReduceConfig, size: int) -> None:
    """Reduce chunk by chunk, so that memory stays bounded however large the tensor is."""
    import torch

    with torch.no_grad():
        direct = tensor.is_contiguous()
        flat = (tensor if direct else tensor.contiguous()).view(-1)
        wide = accumulation_dtype(tensor.dtype, config.force_fp32_accumulation)
        step = max(1, config.chunk_bytes // (size * wide.itemsize))
        for start in range(0, flat.numel(), step):
            chunk = flat[start : start + step]
            total = reduce_chunk(chunk.to(wide), config.mode, config.group, size)
            if config.op == "mean":
                total /= size
            chunk.copy_(total)
        if not direct:
            tensor.copy_(flat.view(tensor.shape))
