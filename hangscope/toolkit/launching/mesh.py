"""Names and sizes of the parallel dimensions, before any group is created."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

ORDER = ("pp", "dp_replicate", "dp_shard", "ep", "tp")
"""Outermost first: the dimensions that communicate most are between neighbouring ranks."""


def resolve_mesh(mesh: Mapping[str, int], world_size: int) -> dict[str, int]:
    """Sizes by name, in `ORDER`, that multiply to ``world_size``.

    A size of -1 takes the remaining ranks; if no size is -1 and ``dp_shard`` is not given, it takes
    them. Dimensions that are given are kept even at size 1. ``dp_shard`` is also kept whenever
    ``tp`` or ``ep`` is, because sharding needs it to turn every parameter into a DTensor.

    Raises
    ------
    ValueError
        An unknown name, a size that is not -1 or above 0, two sizes of -1, or sizes that do not
        multiply to the world size.
    """
    sizes = dict(mesh)
    unknown = sorted(set(sizes) - set(ORDER))
    if unknown:
        raise ValueError(f"mesh: unknown dimension {', '.join(unknown)}; known are {list(ORDER)}")
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != -1):
            raise ValueError(f"mesh: {name}={size!r} is neither a positive integer nor -1")
    open_names = [name for name, size in sizes.items() if size == -1]
    if len(open_names) > 1:
        raise ValueError(f"mesh: only one dimension may be -1, not {', '.join(open_names)}")
    given = prod(size for size in sizes.values() if size != -1)
    if world_size % given:
        raise ValueError(
            f"mesh: {_product(sizes)} = {given} does not divide the world size {world_size}"
        )
    if open_names:
        sizes[open_names[0]] = world_size // given
    elif "dp_shard" not in sizes and (given != world_size or "tp" in sizes or "ep" in sizes):
        sizes["dp_shard"] = world_size // given
    elif given != world_size:
        raise ValueError(f"mesh: {_product(sizes)} = {given}, but the world size is {world_size}")
    return {name: sizes[name] for name in ORDER if name in sizes}


def _product(sizes: Mapping[str, int]) -> str:
    return " * ".join(f"{name}({size})" for name, size in sizes.items() if size != -1) or "1"
