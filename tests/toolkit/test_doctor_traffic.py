"""D12 to D14 from a run's records."""

from __future__ import annotations

import numpy as np

from hangscope.toolkit.doctor.traffic import check_traffic
from hangscope.trace.model import MEMBER_DTYPE, RECORD_DTYPE, Group, RankFacts, Signature, Trace


def run(calls: list[tuple[str, int, str]], hosts: tuple[str, ...] = ("a", "a")) -> Trace:
    """A trace of one group of two ranks that issued ``calls``: (op, elements, dtype)."""
    signatures = tuple(dict.fromkeys(calls))
    records = np.zeros(2 * len(calls), RECORD_DTYPE)
    for rank in (0, 1):
        for index, call in enumerate(calls):
            row = records[rank * len(calls) + index]
            row["rank"], row["collective_seq"] = rank, index + 1
            row["signature"] = signatures.index(call)
    return Trace(
        records=records,
        members=np.zeros(0, MEMBER_DTYPE),
        groups=(Group("0", "fsdp", (0, 1)),),
        signatures=tuple(
            Signature(op, input_sizes=((n,),), output_sizes=((n,),), input_dtypes=(dtype,))
            for op, n, dtype in signatures
        ),
        stacks=(),
        ranks={rank: RankFacts(rank, host=host) for rank, host in enumerate(hosts)},
    )


def found(trace: Trace) -> list[tuple[str, str]]:
    return [(f.playbook, f.check) for f in check_traffic(trace)]


WHOLE = [("_all_gather_base", 10**6, "BFloat16"), ("_reduce_scatter_base", 10**6, "Float")] * 3
BLOCKS = [
    (op, 10**5 + block, dtype)
    for _ in range(3)
    for block in range(8)
    for op, dtype in (("_all_gather_base", "BFloat16"), ("_reduce_scatter_base", "Float"))
]


def test_d12_one_unit_is_one_all_gather_of_everything() -> None:
    assert found(run(WHOLE)) == [("D12", "one-unit")]
    assert found(run(BLOCKS)) == []


def test_d13_sharding_over_hosts() -> None:
    assert found(run(BLOCKS, ("a", "b"))) == [("D13", "sharding-strategy")]
    with_ddp = [*BLOCKS, *[("all_reduce", 10**7, "Float")] * 9]
    assert found(run(with_ddp, ("a", "b"))) == []


def test_d14_dtype_of_reductions() -> None:
    assert found(run([("all_reduce", 10**5, "Half")])) == [("D14", "reduction-dtype")]
    mixed = run([("all_reduce", 10**5, "BFloat16"), ("all_reduce", 10**5, "Float")])
    assert found(mixed) == [("D14", "reduction-dtype")] * 2
    assert found(run([("all_reduce", 1, "Half"), ("all_gather", 10**6, "Half")])) == []


def test_no_findings_without_records() -> None:
    assert found(run([])) == []
