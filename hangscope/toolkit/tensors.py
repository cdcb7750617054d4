"""Tensor utilities shared by several tools: bytes, local parts, checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import torch


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's own data: the local tensor of a DTensor, detached, without communication."""
    detached = tensor.detach()
    to_local = getattr(detached, "to_local", None)
    return cast("torch.Tensor", to_local()) if to_local is not None else detached


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits in logical order as a one-dimensional uint8 tensor, same device."""
    import torch

    flat = local_part(tensor).contiguous().reshape(-1)
    if flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg()
    if flat.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=flat.device)
    return flat.view(torch.uint8)


def checksum(tensors: Iterable[torch.Tensor]) -> str:
    """A short hash of the bits of all tensors, in order; the same on every machine."""
    digest = hashlib.blake2b(digest_size=12)
    for tensor in tensors:
        data = as_bytes(tensor).cpu()
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype};".encode())
        digest.update(data.numpy().data)
    return digest.hexdigest()
