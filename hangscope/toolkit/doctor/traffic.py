"""D12 to D14 in a recorded run: what its collectives reveal about sharding and dtypes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hangscope.toolkit.doctor.model import NOTE, WARNING, Finding

if TYPE_CHECKING:
    from hangscope.trace.model import Signature, Trace

GATHERS = frozenset({"all_gather", "_all_gather_base", "all_gather_into_tensor_coalesced"})
SCATTERS = frozenset({"reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"})
REDUCTIONS = SCATTERS | {"all_reduce", "allreduce_coalesced"}
ONE_UNIT = 0.9
"""If one all-gather has at least this share of all gathered parameters, they are a single unit."""
MOSTLY = 0.8
"""Minimum share of the bytes for sharding to be the job's main traffic."""
SMALL = 4096
"""A collective with fewer elements is a metric or a flag rather than a gradient."""
_WIDTH = {"Half": 2, "BFloat16": 2, "Double": 8, "Long": 8, "Byte": 1, "Char": 1, "Bool": 1}


def check_traffic(trace: Trace) -> Iterator[Finding]:
    """Findings on a run from its records; none if the records are not conclusive."""
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for group, signature in zip(trace.records["group"], trace.records["signature"], strict=True):
        counts[int(group), int(signature)] += 1
    by_group: dict[int, dict[int, int]] = defaultdict(dict)
    for (group, signature), count in counts.items():
        by_group[group][signature] = count
    for group, table in sorted(by_group.items()):
        used = {trace.signatures[index]: count for index, count in table.items()}
        label = trace.groups[group].label
        yield from _one_unit(used, label)
        yield from _across_nodes(trace, used, group)
        yield from _dtypes(used, label)


def _numel(sizes: tuple[tuple[int, ...], ...] | None) -> int:
    total = 0
    for shape in sizes or ():
        size = 1
        for dimension in shape:
            size *= dimension
        total += size
    return total


def _out(signature: Signature) -> int:
    known = signature.output_numel
    return known if known is not None else _numel(signature.output_sizes)


def _bytes(signature: Signature) -> int:
    dtype = (signature.input_dtypes or ("",))[0]
    return max(_out(signature), _numel(signature.input_sizes)) * _WIDTH.get(dtype, 4)


def _one_unit(used: dict[Signature, int], label: str) -> Iterator[Finding]:
    gathers = {s: n for s, n in used.items() if s.op in GATHERS and _out(s) >= SMALL}
    scatters = [s for s in used if s.op in SCATTERS]
    if not gathers or not scatters or max(gathers.values()) < 2:
        return
    largest = max(_out(s) for s in gathers)
    if largest >= ONE_UNIT * sum(_out(s) for s in gathers):
        yield Finding(
            WARNING,
            "one-unit",
            f"group {label} gathers {largest:,} elements at once, nearly all that it ever gathers: "
            "the model is one FSDP unit",
            "Wrap every block, then the model.",
            "D12",
        )


def _across_nodes(trace: Trace, used: dict[Signature, int], group: int) -> Iterator[Finding]:
    hosts = {
        facts.host
        for rank in trace.groups[group].ranks
        if (facts := trace.ranks.get(rank)) is not None and facts.host
    }
    total = sum(_bytes(s) * n for s, n in used.items())
    sharding = sum(_bytes(s) * n for s, n in used.items() if s.op in GATHERS | SCATTERS)
    if len(hosts) > 1 and total and sharding >= MOSTLY * total:
        yield Finding(
            NOTE,
            "sharding-strategy",
            f"{sharding / total:.0%} of the bytes of group {trace.groups[group].label} are "
            f"all-gathers and reduce-scatters over {len(hosts)} hosts",
            "SHARD_GRAD_OP gathers less often if it fits; HYBRID_SHARD stays within a host.",
            "D13",
        )


def _dtypes(used: dict[Signature, int], label: str) -> Iterator[Finding]:
    found: dict[str, int] = defaultdict(int)
    for signature, count in used.items():
        size = _numel(signature.input_sizes)
        if signature.op in REDUCTIONS and size >= SMALL:
            for dtype in set(signature.input_dtypes or ()):
                found[dtype] += count
    for dtype, level, why in (
        ("Half", WARNING, "sums overflow above 65504"),
        ("BFloat16", NOTE, "every addition keeps 8 bits"),
    ):
        if found.get(dtype):
            yield Finding(
                level,
                "reduction-dtype",
                f"group {label} reduces large tensors in {dtype}: {why}",
                "Set reduce_dtype=torch.float32 unless this is meant.",
                "D14",
            )
    if len({d for d in found if d in ("Half", "BFloat16", "Float")}) > 1:
        yield Finding(
            NOTE,
            "reduction-dtype",
            f"group {label} reduces in {', '.join(sorted(found))}",
            "Set param, reduce and buffer dtypes on purpose.",
            "D14",
        )
