"""Which operations may meet in one call of a group, and what two members must pass alike."""

from __future__ import annotations

from typing import Any

import pytest

from hangscope.diagnosis.records.agreement import (
    Terms,
    aspect_of,
    disagreement,
    group_size,
    terms,
)
from hangscope.trace.model import Signature

ONE = ((4,),)
TWO_EVEN = ((4,), (4,))
TWO_UNEVEN = ((4,), (6,))


def call(op: str, **how: Any) -> Terms:
    return terms(Signature(op, **how))


# -- what a call requires of the others ------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "how", "count"),
    [
        pytest.param("all_reduce", {"input_sizes": ((2, 3), (5,))}, 11, id="all tensors count"),
        pytest.param("all_reduce", {"output_sizes": ONE}, 4, id="only its output is known"),
        pytest.param("broadcast", {"input_numel": 7}, 7, id="only a number is known"),
        pytest.param(
            "all_gather", {"input_sizes": ONE, "output_sizes": TWO_EVEN}, 4, id="of equal parts"
        ),
        pytest.param(
            "all_gather", {"input_sizes": ONE, "output_sizes": TWO_UNEVEN}, 10,
            id="of unequal parts: each has another input, all have the same list",
        ),
        pytest.param("all_gather", {"output_sizes": TWO_EVEN}, None, id="a list tells no input"),
        pytest.param(
            "gather",
            {"input_sizes": ONE, "output_sizes": TWO_UNEVEN},
            4,
            id="only the root knows of unequal parts",
        ),
        pytest.param("reduce_scatter", {"output_numel": 3}, 3, id="only the output's number"),
        pytest.param("gather", {"output_sizes": TWO_EVEN}, None, id="only the root has a list"),
        pytest.param(
            "reduce_scatter", {"input_sizes": TWO_EVEN, "output_sizes": ONE}, 4,
            id="scattered in equal parts",
        ),
        pytest.param(
            "reduce_scatter", {"input_sizes": TWO_UNEVEN, "output_sizes": ONE}, 10,
            id="scattered in unequal parts",
        ),
        pytest.param(
            "scatter", {"input_sizes": TWO_UNEVEN, "output_sizes": ONE}, 4,
            id="the root's list may be anything",
        ),
        pytest.param(
            "all_to_all_single",
            {"input_sizes": ONE, "output_sizes": ONE, "input_splits": (), "output_splits": ()},
            4, id="exchanged in equal parts",
        ),
        pytest.param(
            "all_to_all_single",
            {"input_sizes": ONE, "output_sizes": ONE, "input_splits": (1, 3), "output_splits": ()},
            None, id="exchanged as the data require",
        ),
        pytest.param(
            "all_to_all",
            {"input_sizes": TWO_EVEN, "output_sizes": ONE, "input_splits": (), "output_splits": ()},
            None, id="a list of tensors",
        ),
    ],
)  # fmt: skip
def test_element_count_that_all_members_share(
    op: str, how: dict[str, Any], count: int | None
) -> None:
    assert call(op, **how).numel == count


@pytest.mark.parametrize("op", ["barrier", "coalesced", "mine"])
def test_operation_without_rules_of_its_own_requires_only_its_name(op: str) -> None:
    data = {"input_sizes": ONE, "output_sizes": ONE, "input_splits": (), "output_splits": ()}
    assert call(op, **data, input_dtypes=("Float",), backend="gloo") == Terms(op)


@pytest.mark.parametrize(
    ("backend", "on_host"), [("gloo", True), ("mpi", True), ("nccl", False), ("", None)]
)
def test_backend_tells_where_the_tensors_are(backend: str, on_host: bool | None) -> None:
    assert call("all_reduce", backend=backend).on_host is on_host


def test_dtype_is_compared_only_if_all_tensors_have_it() -> None:
    assert call("all_reduce", input_dtypes=("Float", "Float")).dtype == "Float"
    assert call("all_reduce", input_dtypes=("Float", "Half")).dtype is None
    assert call("all_reduce", output_dtypes=("Half",)).dtype == "Half"


def test_scatters_dtype_is_that_of_what_each_member_receives() -> None:
    both = call("scatter", input_dtypes=("Float",), output_dtypes=("Half",))
    assert both.dtype == "Half"
    assert call("scatter", input_dtypes=("Float",)).dtype == "Float"


def test_reduction_is_compared_only_where_something_is_reduced() -> None:
    assert call("reduce", reduce_op="sum").reduce_op == "SUM"
    assert call("broadcast", reduce_op="sum").reduce_op is None


# -- which calls can be one operation --------------------------------------------------------

REDUCE = Terms("all_reduce", 4, "Float", "SUM", on_host=True)


@pytest.mark.parametrize(
    ("other", "aspect"),
    [
        (REDUCE, None),
        (Terms("broadcast", 4, "Float", "SUM", on_host=True), "op"),
        (Terms("all_reduce", 4, "Half", "SUM", on_host=True), "dtype"),
        (Terms("all_reduce", 5, "Float", "SUM", on_host=True), "numel"),
        (Terms("all_reduce", 4, "Float", "MAX", on_host=True), "reduce_op"),
        (Terms("all_reduce", 4, "Float", "SUM", on_host=False), "device"),
        (Terms("all_reduce"), None),
        (Terms("all_reduce", 1), "numel"),
        (Terms("unknown", 5), None),
        (Terms("", 5), None),
    ],
)
def test_first_difference_counts_and_what_nobody_noted_is_none(
    other: Terms, aspect: str | None
) -> None:
    assert disagreement(REDUCE, other) == disagreement(other, REDUCE) == aspect


@pytest.mark.parametrize(("one", "other", "aspect"), [(1, 2, "op"), (1, 1, None), (0, 2, None)])
def test_batches_differ_only_if_both_contents_are_known(
    one: int, other: int, aspect: str | None
) -> None:
    a, b = Terms("coalesced", batch=one), Terms("coalesced", batch=other)
    assert disagreement(a, b) == disagreement(b, a) == aspect


@pytest.mark.parametrize(
    ("other", "aspect"),
    [
        pytest.param(Terms("all_reduce", 1), None, id="as a watchdog calls it"),
        pytest.param(Terms("all_reduce", 2), "op", id="of two elements"),
        pytest.param(Terms("all_reduce", 1, "Float"), "op", id="of a dtype: a loss, say"),
        pytest.param(Terms("broadcast", 1), "op", id="another operation of one element"),
    ],
)
def test_barrier_is_an_all_reduce_of_one_element_without_a_dtype(
    other: Terms, aspect: str | None
) -> None:
    barrier = Terms("barrier")
    assert disagreement(barrier, other) == disagreement(other, barrier) == aspect


@pytest.mark.parametrize(
    ("op", "roots", "aspect"),
    [
        ("broadcast", (0, 1), "root"),
        ("broadcast", (1, 1), None),
        ("broadcast", (-1, 1), None),
        ("broadcast", (0, -1), None),
        ("all_reduce", (0, 1), None),
    ],
)
def test_roots_differ_only_if_the_operation_has_one_and_both_are_known(
    op: str, roots: tuple[int, int], aspect: str | None
) -> None:
    assert aspect_of(Terms(op), Terms(op), roots) == aspect


def test_other_differences_count_before_the_roots() -> None:
    assert aspect_of(Terms("broadcast", 4), Terms("broadcast", 5), (0, 1)) == "numel"


# -- what sizes tell about a group -----------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "size"),
    [
        ("all_gather", ONE, TWO_UNEVEN, 2),
        ("gather", ONE, TWO_EVEN, 2),
        ("gather", ONE, ((4,),), None),
        ("reduce_scatter", TWO_EVEN, ONE, 2),
        ("scatter", TWO_EVEN, ONE, 2),
        ("scatter", (), ONE, None),
        ("_all_gather_base", ((4,),), ((12,),), 3),
        ("_reduce_scatter_base", ((12,),), ((4,),), 3),
        ("_all_gather_base", ((5,),), ((12,),), None),
        ("_all_gather_base", ((0,),), ((12,),), None),
        ("_all_gather_base", ((4,),), (), None),
        ("all_reduce", TWO_EVEN, TWO_EVEN, None),
    ],
)
def test_group_size_follows_from_the_sizes_of_gathers_and_scatters(
    op: str,
    inputs: tuple[tuple[int, ...], ...],
    outputs: tuple[tuple[int, ...], ...],
    size: int | None,
) -> None:
    assert group_size(Signature(op, input_sizes=inputs, output_sizes=outputs)) == size
