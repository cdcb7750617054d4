"""Compares all members' samples of one all-reduce.

A member's entry is a sketch of each input and output, and a hash of the outputs' bits. The member
that has the entries of all others compares them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hangscope.toolkit.barriers.agreement import minority
from hangscope.toolkit.ranks import name_ranks
from hangscope.toolkit.reductions.sketch import BLOCKS, Sketch, sketch, wrong_blocks
from hangscope.toolkit.tensors import checksum

if TYPE_CHECKING:
    import torch

    from hangscope.toolkit.barriers.meeting import StoreGroup

Finding = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One all-reduce as this rank has seen it."""

    store_group: StoreGroup
    number: int
    op: str
    reduce_op: str
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]


def entry_of(sample: Sample) -> dict[str, Any]:
    """This rank's entry for the others: a kilobyte of plain values."""
    return {
        "rank": sample.store_group.me,
        "what": _what(sample),
        "sum": checksum(sample.outputs),
        "in": [_pack(sketch(tensor)) for tensor in sample.inputs],
        "out": [_pack(sketch(tensor)) for tensor in sample.outputs],
    }


def compare_samples(entries: Sequence[Mapping[str, Any]], sample: Sample) -> Finding | None:
    """What is wrong with one all-reduce, according to all members' entries; ``None`` if nothing."""
    store_group = sample.store_group
    if len({entry["what"] for entry in entries}) > 1:
        return None  # members do not count the same calls, so their entries are not comparable
    sums: dict[str, tuple[int, ...]] = {}
    for entry in entries:
        sums[entry["sum"]] = (*sums.get(entry["sum"], ()), entry["rank"])
    accused = minority(sums)
    blocks = _wrong(entries, sample)
    if not accused and not blocks:
        return None
    if accused:
        everyone = len(accused) == len(store_group.ranks)
        text = (
            f"the results of all_reduce #{sample.number} in group {store_group.label} differ"
            f"{' on all ranks' if everyone else f': {name_ranks(accused)} disagree(s)'}"
        )
    else:
        text = (
            f"all ranks hold the same result of all_reduce #{sample.number} in group "
            f"{store_group.label}, but it is not the sum of their inputs "
            f"(blocks {blocks} of {BLOCKS})"
        )
    return {
        "hangscope": "reduction/1",
        "kind": "reduction_corrupt",
        "at_ns": time.time_ns(),
        "group": store_group.label,
        "ranks": list(store_group.ranks),
        "number": sample.number,
        "op": "all_reduce",
        "reduce_op": sample.reduce_op,
        "accused": list(accused),
        "ambiguous": len(accused) in (0, len(store_group.ranks)),
        "wrong_blocks": blocks,
        "checksums": {text_: list(ranks) for text_, ranks in sums.items()},
        "reported_by": store_group.me,
        "text": text,
    }


def _wrong(entries: Sequence[Mapping[str, Any]], sample: Sample) -> list[int]:
    """Blocks in which the majority's result is not the sum of the inputs."""
    import torch

    if sample.reduce_op not in ("sum", "avg"):
        return []
    own = next(entry for entry in entries if entry["rank"] == sample.store_group.me)
    wrong: set[int] = set()
    for index, tensor in enumerate(sample.outputs):
        dtype = tensor.dtype
        floating = dtype.is_floating_point or dtype.is_complex
        if not floating and max(max(e["in"][index][1], default=0.0) for e in entries) > 2**52:
            continue  # integers may have wrapped around
        inputs = [_unpack(entry["in"][index]) for entry in entries]
        wrong.update(
            wrong_blocks(
                inputs,
                _unpack(own["out"][index]),
                unit=torch.finfo(dtype).eps if floating else 0.0,
                elements=-(-tensor.numel() // BLOCKS) * (2 if dtype.is_complex else 1),
                divisor=len(entries) if sample.reduce_op == "avg" else 1,
            )
        )
    return sorted(wrong)


def _what(sample: Sample) -> str:
    shapes = [f"{t.dtype}{list(t.shape)}" for t in sample.inputs]
    return f"{sample.op} {sample.reduce_op} {shapes}"


def _pack(value: Sketch) -> list[list[float]]:
    return [list(value.signed), list(value.absolute)]


def _unpack(value: Sequence[Sequence[float]]) -> Sketch:
    return Sketch(tuple(value[0]), tuple(value[1]))
