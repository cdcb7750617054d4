"""Gives every replica the same parameters and buffers, and verifies it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangscope.toolkit.barriers.agreement import REFUSED, agree, compare, minority
from hangscope.toolkit.barriers.barrier import check_timeout
from hangscope.toolkit.barriers.store_group import members, ready, store_group_of
from hangscope.toolkit.ranks import name_ranks
from hangscope.toolkit.tensors import as_bytes, checksum, local_part

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn

MESSAGE_BYTES = 64 * 2**20
"""Approximate size of the messages into which parameters are packed."""


class SyncError(RuntimeError):
    """Replicas still differ after the parameters were sent.

    Attributes:
        disagreeing: global ranks whose checksum is not the majority's.
    """

    def __init__(self, message: str, disagreeing: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.disagreeing = list(disagreeing)


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What `sync_parameters` sent. ``checksum`` is the same on every member."""

    tensors: int
    bytes: int
    messages: int
    materialized: int
    checksum: str


def sync_parameters(
    module: nn.Module,
    group: dist.ProcessGroup | None,
    src: int = 0,
    *,
    device: torch.device | str | None = None,
    message_bytes: int = MESSAGE_BYTES,
    timeout: float = 300.0,
) -> SyncReport | None:
    """Copy parameters and buffers from one member of ``group`` to the others, bit for bit.

    Before anything is sent, the members compare names, shapes and dtypes through the store. Data
    goes as raw bytes in few large messages, whatever its dtypes. Meta tensors of receivers are
    materialised first; tied tensors stay tied. Sharded modules (FSDP, DTensor) are synchronised
    shard by shard, so their ``group`` must be the replicate group. Afterwards the members compare
    checksums.

    Parameters
    ----------
    module:
        The replica; changed in place.
    group:
        The replicas. ``None`` is the default group, and is rejected for sharded modules: a
        replicate group that could not be created must stop the job.
    src:
        *group* rank of the source; 0 is the group's first member.
    device:
        Where to materialise meta tensors; ``None`` is the current CUDA device or the CPU.
    message_bytes:
        Size of a message, at least one tensor.
    timeout:
        Seconds for each comparison.

    Returns
    -------
    SyncReport or None
        What was sent; ``None`` with a warning if nothing is initialised.

    Raises
    ------
    Disagreement
        The members' modules differ, or the source has meta tensors; on all members.
    SyncError
        Checksums differ afterwards; on all members.
    ValueError
        ``src`` is not a group rank, or ``group`` is ``None`` for a sharded module.
    """
    check_timeout(timeout)
    if message_bytes < 1:
        raise ValueError(f"message_bytes={message_bytes}: at least 1 is needed")
    if not ready("sync_parameters", group):
        return None
    source = _global_rank(src, members(group))
    if group is None and is_sharded(module):
        raise ValueError(
            "sync_parameters: the module is sharded and group is None. Pass the replicate group; "
            "if it could not be made, stop the job: copying one shard over all others would "
            "destroy the model"
        )
    store_group = store_group_of(group, "sync")
    named = list(named_state(module))
    meta = [name for name, tensor in named if local_part(tensor).is_meta]
    say = _structure(named, _where(device))
    if meta and store_group.me == source:
        say = f"{REFUSED}the source itself has meta tensors ({', '.join(meta[:3])})"
    agree(store_group, say, timeout_s=timeout, what="sync_parameters")
    if meta:
        _materialize(module, _where(device))
        named = list(named_state(module))
    tensors = [local_part(tensor) for _, tensor in named]
    sent = [
        _broadcast(bucket, source, group, receives=store_group.me != source)
        for bucket in _buckets(tensors, message_bytes)
    ]
    own_checksum = checksum(tensors)
    said = compare(store_group, own_checksum, timeout_s=timeout, what="sync_parameters: checksums")
    if len(said) > 1:
        wrong = minority(said)
        raise SyncError(
            f"sync_parameters: {name_ranks(wrong)} still differ after the transfer: the network "
            "or a device corrupts data",
            wrong,
        )
    return SyncReport(len(tensors), sum(sent), len(sent), len(meta), own_checksum)


def named_state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, each tensor once, non-persistent buffers included."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def is_sharded(module: nn.Module) -> bool:
    """Whether any parameter holds only this rank's part of a tensor."""
    return any(
        hasattr(parameter, "to_local") or type(parameter).__name__ == "FlatParameter"
        for parameter in module.parameters()
    )


def _global_rank(src: int, ranks: Sequence[int]) -> int:
    """The global rank of a group rank, as broadcast needs it."""
    if isinstance(src, bool) or not isinstance(src, int) or not 0 <= src < len(ranks):
        hint = f" (global rank {src} is group rank {ranks.index(src)})" if src in ranks else ""
        raise ValueError(f"src={src!r} is a group rank and must be in 0..{len(ranks) - 1}{hint}")
    return ranks[src]


def _structure(named: list[tuple[str, torch.Tensor]], target: torch.device) -> str:
    """A digest of names, shapes and dtypes, with enough plain text to see what differs."""
    import hashlib

    def place(tensor: torch.Tensor) -> str:
        return target.type if local_part(tensor).is_meta else tensor.device.type

    lines = [f"{name} {tuple(local_part(t).shape)} {t.dtype} {place(t)}" for name, t in named]
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()
    total = sum(local_part(tensor).numel() for _, tensor in named)
    # Only the digest decides. Names are truncated because all of this goes through the store.
    return f"{len(lines)} tensors with {total} elements, ending in {lines[-1:]} [{digest}]"


def _where(device: torch.device | str | None) -> torch.device:
    import torch

    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _materialize(module: nn.Module, device: torch.device) -> None:
    """Allocate memory for every meta tensor; tied tensors share it."""
    import torch

    made: dict[int, torch.Tensor] = {}

    def real(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            fresh = torch.empty_like(tensor.detach(), device=device)
            if isinstance(tensor, torch.nn.Parameter):
                fresh = torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
            made[id(tensor)] = fresh
        return made[id(tensor)]

    # Keep the meta tensors alive until the end, because they are identified by id.
    old = [tensor for _, tensor in named_state(module)]
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is not None and local_part(tensor).is_meta:
                    table[name] = real(tensor)  # type: ignore[assignment]
    del old


def _buckets(tensors: list[torch.Tensor], limit: int) -> Iterator[list[torch.Tensor]]:
    """Runs of tensors on one device that fit the limit; a larger tensor is a run of its own."""
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        bytes_ = tensor.numel() * tensor.element_size()
        if not bytes_:
            continue
        if bucket and (size + bytes_ > limit or bucket[0].device != tensor.device):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += bytes_
    if bucket:
        yield bucket


def _broadcast(
    bucket: list[torch.Tensor], source: int, group: dist.ProcessGroup | None, *, receives: bool
) -> int:
    """Send tensors as one message, or receive into them; returns the message's bytes."""
    import torch
    import torch.distributed as dist

    with torch.no_grad():
        message = torch.cat([as_bytes(tensor) for tensor in bucket])
        dist.broadcast(message, src=source, group=group)
        if receives:
            _unpack(message, bucket)
    return message.numel()


def _unpack(message: torch.Tensor, bucket: list[torch.Tensor]) -> None:
    offset = 0
    for tensor in bucket:
        size = tensor.numel() * tensor.element_size()
        # Offsets in the message may be unaligned for the dtype, hence the copy.
        data = message[offset : offset + size].clone().view(tensor.dtype)
        tensor.copy_(data.reshape(tensor.shape))
        offset += size
