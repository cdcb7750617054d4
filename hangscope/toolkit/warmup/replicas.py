"""Checks that replicas hold the same parameters and buffers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangscope.toolkit.barriers.agreement import compare, minority
from hangscope.toolkit.barriers.barrier import check_timeout
from hangscope.toolkit.barriers.store_group import ready, store_group_of
from hangscope.toolkit.tensors import checksum
from hangscope.toolkit.warmup.parameters import is_sharded, named_state

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn

DIGITS = 8
"""Digits of each tensor's checksum; enough to compare tensors of the same name."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor that differs between ranks. ``ranks`` (global) hold other bits than the majority."""

    name: str
    kind: str
    ranks: tuple[int, ...]


def compare_replicas(
    module: nn.Module, group: dist.ProcessGroup | None = None, *, timeout: float = 300.0
) -> list[Difference] | None:
    """Which parameters and buffers differ between the members of ``group``.

    All members get the same result. Under DDP, buffers that differ are usually BatchNorm
    statistics. No collective is issued.

    Parameters
    ----------
    module:
        The replica.
    group:
        The replicas; ``None`` is the default group.
    timeout:
        Seconds to wait for the other members.

    Returns
    -------
    list[Difference] or None
        The differences; ``None`` with a warning if nothing is initialised.

    Raises
    ------
    BarrierTimeout
        A member did not arrive.
    ValueError
        ``group`` is ``None`` for a sharded module, whose parts differ anyway.
    """
    check_timeout(timeout)
    if not ready("compare_replicas", group):
        return None
    if group is None and is_sharded(module):
        raise ValueError("compare_replicas: the module is sharded: pass the replicate group")
    store_group = store_group_of(group, "replicas")
    named = list(named_state(module))
    parameters = {name for name, _ in module.named_parameters()}
    whole = checksum(tensor for _, tensor in named)
    if len(compare(store_group, whole, timeout_s=timeout, what="compare_replicas")) == 1:
        return []
    # All members know that something differs, so all meet again to exchange details.
    checksums = json.dumps({name: checksum([tensor])[:DIGITS] for name, tensor in named})
    said = compare(store_group, checksums, timeout_s=timeout, what="compare_replicas: tensors")
    views = {text: json.loads(text) for text in said}
    found = []
    for name in sorted({name for view in views.values() for name in view}):
        sides: dict[str, tuple[int, ...]] = {}
        for text, ranks in said.items():
            value = str(views[text].get(name, "absent"))
            sides[value] = tuple(sorted((*sides.get(value, ()), *ranks)))
        if len(sides) > 1:
            kind = "parameter" if name in parameters else "buffer"
            found.append(Difference(name, kind, minority(sides)))
    return found
