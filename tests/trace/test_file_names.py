"""Ranks and attempts in the file names that recorders and collectors use."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.trace.files.file_names import (
    attempt_of,
    local_rank_of_log,
    rank_of_dump,
    rank_of_log,
)


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("comm_lib_trace_rank_12", 12),
        ("_dump_3", 3),
        ("_dump_3.json", 3),
        ("rank_3.json", 3),
        ("rank3.pickle.gz", 3),
        ("trace_3", 3),
        ("nccl_trace_rank_node-7_3", 3),
        ("nccl_trace_rank_10-0-0-1_15", 15),
        ("gpu-0042.cluster_rank_5.json", 5),
        ("rank_4_dump.pkl", 4),
        ("rank_4_2025-08-16.json", 4),
        ("rank_4_20250816_121005.json", 4),
        ("rank_2/nccl_trace", 2),
        ("job/7/dump.json", 7),
        ("rank_3_gpu_1.pkl", 3),
        ("nccl_trace_rank_3_pg_0", 3),
        ("rank_3.group7.pkl", 3),
        ("nccl_trace_rank_3_host0", 3),
        ("job123_attempt0_rank5_node1.pkl", 5),
        ("dump_gpu_3", 3),
        ("nccl_trace_rank_10-node_3", 3),
        ("nccl_trace_rank_gpu8-host2_3", 3),
        ("dump.json", None),
        ("dump_2025-08-16.json", None),
    ],
)
def test_rank_in_the_name_of_a_dump(path: str, rank: int | None) -> None:
    assert rank_of_dump(Path("x") / path) == rank


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank_3.log", 3),
        ("worker-rank7.err", 7),
        ("rank2/stderr.log", 2),
        ("slurm-123456.out", None),
        ("train_2.log", None),
        ("attempt_0/3/stderr.log", None),
        ("job_node_rank_3.log", None),
        ("local_rank_3.log", None),
        ("tp_rank_2.log", None),
        ("dp_rank_0_rank_5.log", 5),
        ("log_rank12_local_rank4.txt", 12),
        ("frank3.log", None),
    ],
)
def test_rank_in_the_name_of_a_log_must_be_labelled(path: str, rank: int | None) -> None:
    assert rank_of_log(Path("x") / path) == rank


def test_torchrun_folders_contain_local_ranks() -> None:
    path = Path("/logs/none_abc/attempt_1/3/stderr.log")
    assert local_rank_of_log(path) == 3
    assert attempt_of(path) == 1
