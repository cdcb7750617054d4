"""The deterministic all-reduce and its check, in real jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from hangscope.toolkit.environments.variables import DETERMINISTIC_NCCL_ENV
from hangscope.toolkit.reductions.deterministic_env import configure_deterministic_nccl_env
from tests.real_jobs import JobResult, worlds
from tests.toolkit.launcher import processes, reduction_job, world

pytestmark = pytest.mark.xdist_group("reductions")


@pytest.fixture(scope="module")
def job() -> JobResult:
    return reduction_job()


@pytest.mark.parametrize(
    "check",
    [
        "bitwise_equal_for_every_world_size_and_shuffled_arrival",
        "bitwise_equal_over_runs",
        "subgroup_whose_ranks_are_not_0_to_n",
        "cancellation_gives_what_each_mode_documents",
        "fp32_accumulation_is_honoured_in_every_mode",
        "non_contiguous_input_is_right_in_every_mode",
        "mean",
        "zero_size_integer_and_scalar",
        "chunks_bound_memory_and_change_no_bit",
        "leaf_with_gradient_and_config_object",
        "refused_with_a_reason_by_all_together",
        "all_raise_together_when_arguments_differ",
        "signatures_are_compared_on_every_call",
    ],
)
def test_deterministic_all_reduce_does_as_documented(job: JobResult, check: str) -> None:
    job.assert_ok(check)


@pytest.mark.parametrize(
    "check",
    [
        "check_all_reduce_agrees_with_the_reference",
        "check_all_reduce_finds_one_rank_with_other_bits",
        "check_all_reduce_finds_the_same_error_on_all_ranks",
        "check_all_reduce_refuses_together",
    ],
)
def test_checked_all_reduce_does_as_documented(job: JobResult, check: str) -> None:
    job.assert_ok(check)


def test_two_launches_give_the_same_bits() -> None:
    first = processes("rerun_job", worlds(3))
    second = processes("rerun_job", worlds(3))
    first.assert_ok("reduced", [0, 1, 2])
    second.assert_ok("reduced", [0, 1, 2])
    bits = {str(values) for run in (first, second) for values in run.values.values()}
    assert len(bits) == 1, bits


@pytest.fixture(scope="module")
def sampling() -> JobResult:
    return world("sampler_job", 4)


@pytest.mark.parametrize(
    "check",
    [
        "no_false_alarm_though_results_change_at_once",
        "every_nth_only_and_the_same_on_all",
        "corruption_on_one_rank_is_pinned_on_it",
        "the_same_corruption_on_all_ranks_is_seen_by_the_sum",
        "subgroup_average_and_max",
        "a_rank_that_never_samples_blocks_nobody",
        "refuses_nonsense_and_other_operations",
    ],
)
def test_sampled_reductions_of_a_running_job(sampling: JobResult, check: str) -> None:
    sampling.assert_ok(check, [0, 1, 2, 3])


@pytest.fixture
def whole_environment() -> Iterator[None]:
    """Restore every variable, not only those a test names."""
    before = dict(os.environ)
    for name in DETERMINISTIC_NCCL_ENV:
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("whole_environment")
def test_deterministic_nccl_env_keeps_what_was_set() -> None:
    os.environ["NCCL_ALGO"] = "Tree"
    with pytest.warns(RuntimeWarning, match="NCCL_ALGO=Tree is kept"):
        previous = configure_deterministic_nccl_env()
    assert previous == dict.fromkeys(DETERMINISTIC_NCCL_ENV) | {"NCCL_ALGO": "Tree"}
    assert os.environ["NCCL_ALGO"] == "Tree"
    assert os.environ["NCCL_PROTO"] == "Simple"


@pytest.mark.usefixtures("whole_environment")
def test_deterministic_nccl_env_overwrites_and_can_be_put_back() -> None:
    os.environ["NCCL_ALGO"] = "Tree"
    previous = configure_deterministic_nccl_env(overwrite=True)
    assert {name: os.environ[name] for name in DETERMINISTIC_NCCL_ENV} == DETERMINISTIC_NCCL_ENV
    assert previous["NCCL_ALGO"] == "Tree"
    assert previous["NCCL_PROTO"] is None
