"""Creates all communicators before training, one after the other, each with a timeout."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangscope.toolkit.barriers.agreement import Disagreement, agree, compare, views_in
from hangscope.toolkit.barriers.barrier import BarrierTimeout, check_count, check_timeout
from hangscope.toolkit.barriers.store_group import (
    is_member,
    label_of,
    members,
    ready,
    store_group_of,
)
from hangscope.toolkit.bounded import TookTooLong, bounded
from hangscope.toolkit.ranks import compress

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

WARMUP_ELEMENTS = 8192
"""32 KiB of float32: enough to open every channel, too little to cost anything."""
VERDICT_S = 10.0
"""Time for the members to compare results, in addition to that for the collectives."""


class WarmupError(RuntimeError):
    """A communicator could not be created or gives wrong results.

    Attributes:
        group: label of the group.
        ranks: its members, global.
        failing: members known to have failed or not arrived.
    """

    def __init__(
        self, message: str, group: str = "", ranks: Iterable[int] = (), failing: Iterable[int] = ()
    ) -> None:
        super().__init__(message)
        self.group = group
        self.ranks = list(ranks)
        self.failing = list(failing)


@dataclass(frozen=True, slots=True)
class WarmedGroup:
    """One group on one device type that was warmed up."""

    group: str
    ranks: tuple[int, ...]
    device: str
    iterations: int
    elapsed_s: float


def warmup_communicators(
    groups: Iterable[dist.ProcessGroup] | None = None,
    device: torch.device | str | None = None,
    iterations: int = 5,
    timeout: float = 60.0,
) -> list[WarmedGroup]:
    """Run a few small all-reduces in every group, so that connections exist before training.

    PyTorch enforces no timeout while a communicator is being created at its first collective; here
    each group gets ``timeout`` seconds. Groups are processed in the same order on every rank,
    whatever order they are given in, so overlapping groups cannot block each other. The tensor is
    reset to ones before every all-reduce, and the result is checked.

    Parameters
    ----------
    groups:
        Groups of this process; ``None`` is every group it belongs to.
    device:
        One device; ``None`` is every device type that a group has a backend for.
    iterations:
        All-reduces per group and device.
    timeout:
        Seconds per group.

    Returns
    -------
    list[WarmedGroup]
        What was warmed up; empty with a warning if nothing is initialised.

    Raises
    ------
    WarmupError
        On every member that is still able to raise; names the group and the ranks.
    ValueError
        An argument is out of range.
    """
    check_timeout(timeout)
    check_count(iterations, "iterations")
    if not ready("warmup_communicators"):
        return []
    return [
        _warm(group, where, iterations, timeout)
        for group in _in_order(groups)
        for where in _devices(group, device)
    ]


def _in_order(groups: Iterable[dist.ProcessGroup] | None) -> list[dist.ProcessGroup]:
    """Each group once, ordered by name, as names are unique and the same on all members."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    known = list(c10d._world.pg_map) if groups is None else list(groups)
    world = dist.group.WORLD
    own = {
        str(group.group_name): group
        for group in (world if group is None else group for group in known)
        if group is not None and is_member(group)
    }
    # The default group first, because the others' communicators may be split from it.
    return [own[name] for name in sorted(own, key=lambda n: (own[n] is not world, len(n), n))]


def _devices(group: dist.ProcessGroup, device: torch.device | str | None) -> list[torch.device]:
    import torch

    if device is not None:
        return [torch.device(device)]
    usable = []
    for found in sorted(group._device_types, key=str):
        if found.type == "cuda" and not torch.cuda.is_available():
            continue  # gloo claims CUDA support even without any device
        if found.type in ("cpu", "cuda"):
            usable.append(
                torch.device("cuda", torch.cuda.current_device()) if found.type == "cuda" else found
            )
    if any(d.type == "cuda" for d in usable) and _one_backend(group, usable):
        return [d for d in usable if d.type == "cuda"]
    return usable


def _one_backend(group: dist.ProcessGroup, devices: list[torch.device]) -> bool:
    """Whether all device types share one backend and so one set of connections."""
    return len({group._get_backend(d).name() for d in devices}) == 1


def _warm(
    group: dist.ProcessGroup, device: torch.device, iterations: int, timeout: float
) -> WarmedGroup:
    label, ranks = label_of(group), members(group)
    where = f"group {label} (ranks {compress(ranks)}) on {device}"
    began = time.monotonic()
    store_group = store_group_of(group, "warmup")
    what = f"warm-up of {where}"
    try:
        agree(store_group, f"{device.type} x {iterations}", timeout_s=timeout, what=what)
    except BarrierTimeout as error:
        raise WarmupError(str(error), label, ranks, error.missing) from error
    except Disagreement as error:
        raise WarmupError(str(error), label, ranks) from error
    problem = ""
    try:
        bounded(lambda: _all_reduces(group, device, iterations), timeout, "warmup")
    except TookTooLong:
        problem = f"the collective did not complete within {timeout:g} s"
    except Exception as error:
        problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    try:
        said = compare(
            store_group, problem, timeout_s=max(timeout, VERDICT_S), what=f"{what}: result"
        )
    except BarrierTimeout as error:
        raise WarmupError(str(error), label, ranks, error.missing) from error
    said.pop("", None)
    if said:
        failing = sorted(rank for side in said.values() for rank in side)
        raise WarmupError(
            f"{what} failed: {views_in(said)}. All members were there, so look at the network "
            "between their hosts (interface variables, firewall, fabric).",
            label,
            ranks,
            failing,
        )
    return WarmedGroup(label, ranks, str(device), iterations, time.monotonic() - began)


def _all_reduces(group: dist.ProcessGroup, device: torch.device, iterations: int) -> None:
    import torch
    import torch.distributed as dist

    if device.type == "cuda":
        torch.cuda.set_device(device)  # a new thread starts on device 0
    size = dist.get_world_size(group)
    tensor = torch.empty(WARMUP_ELEMENTS, device=device, dtype=torch.float32)
    for _ in range(iterations):
        tensor.fill_(1.0)  # repeated in-place sums would grow by the world size each time
        dist.all_reduce(tensor, group=group)
        wrong = int((tensor != size).sum())  # also waits for the device
        if wrong:
            raise RuntimeError(
                f"an all_reduce of ones gave {wrong} of {WARMUP_ELEMENTS} values other than {size}"
            )
