"""The deterministic all-reduce in one job of four ranks or more, with subgroups of every size."""

import random
import time

import torch
import torch.distributed as dist

import hangscope
from hangscope import DeterministicAllReduceConfig as Config
from hangscope import deterministic_all_reduce as reduce
from hangscope.toolkit.reductions.deterministic import Disagreement
from hangscope.toolkit.tensors import checksum
from tests.job_report import Report, raises

report = Report()
hangscope.init_distributed(init_timeout=60, timeout=60)
rank, size = dist.get_rank(), dist.get_world_size()
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)
ORDERED, TREE, TORCH = "ordered_rank_reference", "balanced_tree", "torch_all_reduce"


def part(member: int, dtype=torch.float32, count: int = 1001) -> torch.Tensor:
    """What one member contributes: values of very different size, the same in every run."""
    generator = torch.Generator().manual_seed(1000 + member)
    wide = torch.randn(count, generator=generator) * torch.logspace(-3, 3, count)
    if dtype.is_complex:
        return torch.complex(wide, wide.flip(0)).to(dtype)
    return wide.to(dtype)


def expected(members: list[int], mode: str, dtype=torch.float32, fp32: bool = True):
    """The sum as the mode documents it, computed here without any collective."""
    acc = torch.float32 if fp32 and dtype.itemsize == 2 else dtype
    parts = [part(m, dtype).to(acc) for m in members]
    if mode == ORDERED:
        total = parts[0]
        for other in parts[1:]:
            total = total + other
        return total.to(dtype)
    while len(parts) > 1:
        parts = [
            parts[i] + parts[i + 1] if i + 1 < len(parts) else parts[i]
            for i in range(0, len(parts), 2)
        ]
    return parts[0].to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return checksum([a]) == checksum([b])


groups = {n: dist.new_group(list(range(n))) for n in range(1, size)}
groups[size] = dist.group.WORLD
odd = [1, size // 2 + 1]
odd_group = dist.new_group(odd)

with report.check("bitwise_equal_for_every_world_size_and_shuffled_arrival"):
    for n, group in groups.items():
        if rank >= n:
            continue
        for mode in (ORDERED, TREE):
            for dtype in FLOATS:
                time.sleep(random.random() * 0.02)
                tensor = reduce(part(rank, dtype), mode=mode, group=group)
                assert same_bits(tensor, expected(list(range(n)), mode, dtype)), (n, mode, dtype)

with report.check("bitwise_equal_over_runs"):
    sums = [reduce(part(rank), mode=mode) for mode in (ORDERED, TREE) for _ in range(3)]
    report.values["sums"] = [checksum([t]) for t in sums]
    assert len(set(report.values["sums"][:3])) == 1

with report.check("subgroup_whose_ranks_are_not_0_to_n"):
    if rank in odd:
        for mode in (ORDERED, TREE):
            tensor = reduce(part(rank), mode=mode, group=odd_group)
            assert same_bits(tensor, expected(odd, mode))

with report.check("cancellation_gives_what_each_mode_documents"):
    value = [1e20, 1.0, -1e20, 1.0][rank % 4]
    four = groups[4]
    if rank < 4:
        assert reduce(torch.tensor([value]), mode=ORDERED, group=four).item() == 1.0
        assert reduce(torch.tensor([value]), mode=TREE, group=four).item() == 0.0
        got = reduce(torch.tensor([value]), mode=TORCH, group=four).item()
        assert got in (0.0, 1.0, 2.0), got  # the backend's order, whichever it is
        assert reduce(torch.tensor([value]).double(), mode=ORDERED, group=four).item() == 1.0

with report.check("fp32_accumulation_is_honoured_in_every_mode"):
    # 256 + 1 is 256 in bfloat16: only a wider sum gets past it.
    for mode in (ORDERED, TREE, TORCH):
        tensor = torch.tensor([256.0 if rank == 0 else 1.0], dtype=torch.bfloat16)
        exact = torch.tensor([256.0 + size - 1]).bfloat16()
        assert reduce(tensor.clone(), mode=mode).item() == exact.item(), mode
    narrow = reduce(tensor.clone(), mode=ORDERED, force_fp32_accumulation=False)
    assert narrow.item() == 256.0, narrow

with report.check("non_contiguous_input_is_right_in_every_mode"):
    for mode in (ORDERED, TREE, TORCH):
        base = torch.arange(24.0).reshape(4, 6) + rank
        keep = base.clone()
        view = base[:, ::2]
        result = reduce(view, mode=mode)
        assert result is view
        want = keep[:, ::2] * size + sum(range(size)) - rank * size
        assert torch.equal(view, want), mode
        assert torch.equal(base[:, 1::2], keep[:, 1::2]), "what lies between is untouched"
        transposed = (torch.arange(6.0).reshape(2, 3) + rank).t()
        reduce(transposed, mode=mode)
        assert transposed[2, 1].item() == 5 * size + sum(range(size))

with report.check("mean"):
    for mode in (ORDERED, TREE, TORCH):
        assert reduce(torch.tensor([float(rank)]), mode=mode, op="mean").item() == (size - 1) / 2

with report.check("zero_size_integer_and_scalar"):
    for mode in (ORDERED, TREE, TORCH):
        assert reduce(torch.empty(0, 3), mode=mode).shape == (0, 3)
        assert reduce(torch.tensor(rank), mode=mode).item() == sum(range(size))
        assert reduce(torch.tensor([2**62], dtype=torch.int64), mode=mode) is not None

with report.check("chunks_bound_memory_and_change_no_bit"):
    for mode in (ORDERED, TREE):
        assert same_bits(
            reduce(part(rank), mode=mode, chunk_bytes=64),
            reduce(part(rank), mode=mode),
        )

with report.check("leaf_with_gradient_and_config_object"):
    leaf = torch.ones(2, requires_grad=True)
    reduce(leaf, Config(mode=TREE))
    assert leaf.tolist() == [size, size]
    raises(TypeError, reduce, torch.ones(1), colour="red")

with report.check("refused_with_a_reason_by_all_together"):
    cases = [
        (torch.ones(2, dtype=torch.bool), {}, "bool"),
        (torch.ones(2, dtype=torch.int32), {"op": "mean"}, "mean"),
        (torch.ones(1).expand(4), {}, "share memory"),
        (torch.ones(2), {"async_op": True}, "async_op"),
        (torch.ones(2), {"mode": "ring"}, "mode"),
        (torch.ones(2), {"op": "max"}, "op="),
        (torch.ones(2).to_sparse(), {}, "layout"),
        (torch.ones(2, device="meta"), {}, "meta"),
        (torch.zeros(2, dtype=torch.complex32), {}, "complex32"),
        (torch.ones(2), {"chunk_bytes": 0}, "chunk_bytes"),
    ]
    for tensor, options, word in cases:
        error = raises(ValueError, reduce, tensor, **options)
        assert word in str(error), (word, str(error))

with report.check("all_raise_together_when_arguments_differ"):
    last = size - 1
    for odd_one, options in (
        (torch.ones(3), {}),
        (torch.ones(2).double(), {}),
        (torch.ones(2), {"mode": TREE}),
        (torch.ones(2), {"op": "mean"}),
        (torch.ones(2), {"force_fp32_accumulation": False}),
        (torch.ones(2, dtype=torch.bool), {}),
        (torch.ones(2), {"async_op": True}),
    ):
        mine = (odd_one, options) if rank == last else (torch.ones(2), {})
        error = raises(Disagreement, reduce, mine[0], timeout=20, **mine[1])
        assert f"rank {last}" in str(error), str(error)
    # And nothing was left waiting: the next one works.
    assert reduce(torch.ones(2)).tolist() == [size, size]

with report.check("signatures_are_compared_on_every_call"):
    # A cache of signatures per rank would let the second call through on the others.
    reduce(torch.ones(4))
    error = raises(Disagreement, reduce, torch.ones(4 if rank else 5), timeout=20)
    assert "rank 0" in str(error)

with report.check("check_all_reduce_agrees_with_the_reference"):
    tensor = part(rank)
    keep = tensor.clone()
    check = hangscope.check_all_reduce(tensor)
    assert torch.equal(tensor, keep)
    assert check.ok, check
    assert check.disagreeing_ranks == ()
    integers = hangscope.check_all_reduce(torch.arange(10) * rank, op="sum")
    assert integers.bitwise_equal
    assert integers.mismatch_count == 0
    assert hangscope.check_all_reduce(part(rank, torch.complex64)).ok
    assert hangscope.check_all_reduce(part(rank, torch.bfloat16), op="mean").disagreeing_ranks == ()

real = dist.all_reduce


def corrupting(victims, amount):
    def all_reduce(tensor, *args, **kwargs):
        work = real(tensor, *args, **kwargs)
        if rank in victims:
            tensor.view(-1)[7] += amount
        return work

    return all_reduce


with report.check("check_all_reduce_finds_one_rank_with_other_bits"):
    dist.all_reduce = corrupting([1], 0.5)
    check = hangscope.check_all_reduce(torch.ones(100) * rank)
    dist.all_reduce = real
    assert check.disagreeing_ranks == (1,), check
    assert not check.ok
    assert check.bitwise_equal == (rank != 1)
    assert check.mismatch_count == (1 if rank == 1 else 0)
    if rank == 1:
        assert check.max_abs_diff == 0.5
        assert 0 < check.max_rel_diff < 1

with report.check("check_all_reduce_finds_the_same_error_on_all_ranks"):
    dist.all_reduce = corrupting(range(size), 0.5)
    check = hangscope.check_all_reduce(torch.ones(100) * rank)
    dist.all_reduce = real
    assert check.disagreeing_ranks == ()
    assert not check.within_tolerance
    assert check.mismatch_count == 1

with report.check("check_all_reduce_refuses_together"):
    raises(ValueError, hangscope.check_all_reduce, torch.ones(2 + (rank == 1)), timeout=20)
    raises(ValueError, hangscope.check_all_reduce, torch.ones(2), op="max")

hangscope.destroy_distributed()
