"""Canonical names of operations, which every source spells differently.

They are the Flight Recorder's names without the backend (``all_reduce``, ``_all_gather_base``,
...). An unknown name passes through in lower case: new backends and operations are analysed by
structure, never refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_ALIASES = {
    "allreduce": "all_reduce",
    "all_reduce_sparse": "all_reduce",
    "sparse_all_reduce": "all_reduce",
    "_allreduce_sparse": "all_reduce",
    "allreduce_sparse": "all_reduce",
    "_broadcast_oop": "_broadcast_oop",
    "_reduce_oop": "_reduce_oop",
    "bcast": "broadcast",
    "allgather": "all_gather",
    "all_gather_object": "all_gather",
    "_allgather_base": "_all_gather_base",
    "allgather_base": "_all_gather_base",
    "all_gather_base": "_all_gather_base",
    "all_gather_into_tensor": "_all_gather_base",
    "all_gather_single": "_all_gather_base",
    "allgather_into_tensor": "_all_gather_base",
    "all_gather_tensor": "_all_gather_base",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "reducescatter": "reduce_scatter",
    "reduce_scatter_base": "_reduce_scatter_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "reducescatter_coalesced": "reduce_scatter_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_base": "all_to_all_single",
    "alltoallv": "all_to_all_single",
    "all_to_allv": "all_to_all_single",
    "all_to_all_v_single": "all_to_all_single",
    "all_to_all_v": "all_to_all",
    "all_gather_v": "all_gather",
    "gather_single": "gather",
    "batch_op_issue": "coalesced",
    "allgatherv": "all_gather",
    "reduce_scatter_v": "reduce_scatter",
    "all_reduce_barrier": "barrier",
    "monitored_barrier": "monitored_barrier",
    "all_reduce_coalesced": "allreduce_coalesced",
    "recv_any_source": "recv",
    "recvanysource": "recv",
    "isend": "send",
    "irecv": "recv",
}

_FAMILIES = {
    "all_to_all_single": "all_to_all",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
}

_KNOWN = frozenset(_ALIASES.values()) | {"reduce", "gather", "scatter", "broadcast"}

_PAIR = re.compile(r"^(send|recv|isend|irecv)\b\s*(-?\d+|\?)?\s*(->|<-)?\s*(-?\d+|\?)?", re.I)
_LIBRARY = re.compile(r"^(?:nccl|rccl|hccl|xccl|mccl|cncl)(?:Dev)?(?:Kernel)?_?(?=_?[a-z])", re.I)
"""``ncclAllReduce`` is the library's function, ``ncclDevKernel_AllReduce_Sum_f32`` its kernel."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MAX_NAME = 200


class OperationName(NamedTuple):
    """A parsed operation name; ``src`` and ``dst`` are group ranks, ``-1`` for none or any."""

    backend: str
    op: str
    src: int
    dst: int


@lru_cache(maxsize=65536)
def parse(raw: str) -> OperationName:
    """Parse ``nccl:recv 1<-0``, ``c10d::allreduce_``, ``_ALLGATHER_BASE`` or ``AllReduce``."""
    text = raw.strip()[:_MAX_NAME]
    backend = ""
    if "::" in text:
        text = text.rsplit("::", 1)[1]
    elif ":" in text:
        backend, text = text.split(":", 1)
        # A backend's name may contain a colon, as may a name chosen by the job itself.
        head, _, last = text.rpartition(":")
        if head and (_canonical_name(last) in _KNOWN or _PAIR.match(last)):
            backend, text = f"{backend}:{head}", last
    backend = backend.strip().lower()
    text = text.strip()
    pair = _PAIR.match(text)
    if pair:
        verb, left, arrow, right = pair.groups()
        verb = verb.lower().removeprefix("i")
        a, b = _rank(left), _rank(right)
        if arrow is None:
            return OperationName(backend, verb, -1, -1)
        src, dst = (a, b) if arrow == "->" else (b, a)
        return OperationName(backend, verb, src, dst)
    return OperationName(backend, _canonical_name(text), -1, -1)


def _rank(text: str | None) -> int:
    if text is None or text == "?":
        return -1
    value = int(text[:10])
    return value if 0 <= value < 2**31 else -1


def _canonical_name(text: str) -> str:
    name = _plain_name(text)
    if name not in _KNOWN and (library := _LIBRARY.match(text)):
        inner = text[library.end() :]
        for called in (inner, inner.split("_", 1)[0]):  # a kernel's name ends in its reduction
            if (known := _plain_name(called)) in _KNOWN:
                return known
    return name


def _plain_name(text: str) -> str:
    name = text
    if not name.isupper() and not name.islower() and "_" not in name:
        name = _CAMEL.sub("_", name)
    name = name.lower()
    if name.startswith("torch.distributed."):
        name = name.removeprefix("torch.distributed.")
    # Operators of the dispatcher end in an underscore: ``allreduce_``, ``broadcast_``.
    if name.endswith("_") and len(name) > 1:
        name = name.rstrip("_") or name
    return _ALIASES.get(name, name)


def canonical(raw: str) -> str:
    """The canonical name of an operation."""
    return parse(raw).op


def family(op: str) -> str:
    """The operation that a canonical name stands for where sources differ in granularity.

    NCCL's recorder says ``all_to_all`` for both forms; its watchdog says which one.
    """
    return _FAMILIES.get(op, op)


BATCH = "coalesced"
"""The name of a batch's own row; its members precede it."""


def is_batch(op: str) -> bool:
    """Whether a row of this name stands for a whole coalesced batch."""
    return op == BATCH or op.endswith("_coalesced")


def is_p2p(op: str) -> bool:
    """Whether the operation is a send or a receive."""
    return op in ("send", "recv")
