"""The store group (see `meeting`) of a torch process group."""

from __future__ import annotations

import hashlib
import sys
import warnings
from typing import TYPE_CHECKING, Any, cast

from hangscope.toolkit.barriers import store_incarnation
from hangscope.toolkit.barriers.meeting import Store, StoreGroup

if TYPE_CHECKING:
    import torch.distributed as dist

_STORES: list[tuple[Any, str]] = []
"""Stores that this process has joined, with their incarnation; newest last."""


def is_ready() -> bool:
    """Whether torch.distributed exists in this build and its default group is initialised."""
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized())


def is_member(group: dist.ProcessGroup | None) -> bool:
    """Whether this rank belongs to ``group``; only meaningful once `is_ready`."""
    import torch.distributed as dist

    if isinstance(group, int):  # GroupMember.NON_GROUP_MEMBER, what new_group gives outsiders
        return False
    return dist.get_rank(group) >= 0


def ready(what: str, group: dist.ProcessGroup | None = None) -> bool:
    """Whether `is_ready` and `is_member`; if not, emits a warning that names ``what``."""
    if not is_ready():
        warnings.warn(
            f"hangscope.{what}: torch.distributed is not initialised; nothing to do",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    if not is_member(group):
        warnings.warn(
            f"hangscope.{what}: this rank is not a member of the group; nothing to do",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    return True


def members(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    """Global ranks of the group in group-rank order."""
    import torch.distributed as dist

    return tuple(dist.get_process_group_ranks(group))


def label_of(group: dist.ProcessGroup | None) -> str:
    """The name people use for a group: its description, or its name."""
    import torch.distributed as dist

    pg = group if group is not None else dist.group.WORLD
    desc = str(getattr(pg, "group_desc", "") or "")
    if desc == "default_pg":
        return "default"
    name = str(getattr(pg, "group_name", "") or "")
    return desc if desc and desc != "undefined" else name or "default"


def store_group_of(group: dist.ProcessGroup | None, purpose: str) -> StoreGroup:
    """The store group of ``group`` for one ``purpose``; each purpose has its own generations.

    Raises
    ------
    RuntimeError
        The job has no key-value store (the MPI backend).
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if dist.get_backend() == "mpi":
        raise RuntimeError("the MPI backend has no key-value store to meet in")
    pg = group if group is not None else c10d._get_default_group()
    ranks = members(group)
    store = c10d._get_default_store()
    name = getattr(pg, "group_name", "")
    # Names are reused after a re-initialisation, so the members are part of the key.
    digest = hashlib.sha1(repr(ranks).encode()).hexdigest()[:10]
    me = dist.get_rank()
    return StoreGroup(
        store=cast(Store, store),
        name=f"hangscope/{purpose}/{name}/{digest}",
        ranks=ranks,
        me=me,
        label=label_of(group),
        incarnation=_incarnation(store, me),
    )


def _incarnation(store: Any, rank: int) -> str:
    for known, incarnation in _STORES:
        if known is store:
            return incarnation
    incarnation = store_incarnation.join(cast(Store, store), rank)
    _STORES.append((store, incarnation))
    del _STORES[:-4]
    return incarnation


def call_site(depth: int = 6) -> str:
    """A hash of the call's place in the user's program: base name, line and function of the frames.

    Base names only, because nodes may have the same program in different directories.
    """
    frame = sys._getframe(1)
    parts: list[str] = []
    while frame is not None and len(parts) < depth:
        if not frame.f_globals.get("__name__", "").startswith("hangscope.toolkit"):
            code = frame.f_code
            base = code.co_filename.rsplit("/", 1)[-1]
            parts.append(f"{base}:{frame.f_lineno}:{code.co_name}")
        if frame.f_back is None:
            break
        frame = frame.f_back
    return hashlib.sha1("|".join(parts).encode()).hexdigest()[:12]
