"""Warm-up of communicators, replicas and training steps, in a real job."""

from __future__ import annotations

import pytest

from tests.real_jobs import JobResult
from tests.toolkit.launcher import world

pytestmark = pytest.mark.xdist_group("warmup")

RANKS = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def job() -> JobResult:
    return world("warmup_job", 4)


@pytest.mark.parametrize(
    "check",
    [
        "every_group",
        "order_is_identical_whatever_order_is_given",
        "values_are_reset_between_iterations",
        "member_that_does_not_come_is_named",
        "communicator_that_does_not_answer_is_named",
        "different_iterations_are_refused_by_all",
    ],
)
def test_communicators_are_warmed_up_as_documented(job: JobResult, check: str) -> None:
    job.assert_ok(check, RANKS)


@pytest.mark.parametrize(
    "check",
    [
        "buffers_too",
        "replicas_that_differ_are_named_by_tensor",
        "source_is_a_group_rank_sent_as_a_global_one",
        "meta_tensors_are_materialised_and_ties_kept",
        "meta_source_is_refused_by_all",
        "different_structure_is_refused_by_all_before_anything_is_sent",
        "corruption_in_transit_is_found",
        "several_messages_give_the_same",
        "sharded_module_without_a_group_is_refused",
    ],
)
def test_parameters_are_synchronised_as_documented(job: JobResult, check: str) -> None:
    job.assert_ok(check, RANKS)


@pytest.mark.parametrize("wrap", ["plain", "ddp", "fsdp2", "fsdp1"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("when", ["fresh", "running"])
def test_warmup_training_leaves_no_trace(
    job: JobResult, wrap: str, optimizer: str, when: str
) -> None:
    job.assert_ok(f"training_{wrap}_{optimizer}_{when}", RANKS)


@pytest.mark.parametrize(
    "check",
    [
        "fsdp2_forward_only_step_leaves_no_gathered_parameters_behind",
        "step_that_fails_on_one_rank_is_named_on_the_others",
        "data_that_cannot_go_back_is_refused",
    ],
)
def test_training_is_warmed_up_as_documented(job: JobResult, check: str) -> None:
    job.assert_ok(check, RANKS)
