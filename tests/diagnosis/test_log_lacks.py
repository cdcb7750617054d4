# ruff: noqa: E501
"""What to do about a log that names nobody depends on what that log lacks."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from tests.trace.logs import timeout, trace_of

HEAD = "[rank3]:[E816 12:10:01.111111111 ProcessGroupNCCL.cpp:670] "


@pytest.mark.parametrize(
    ("log", "words", "others"),
    [
        (timeout(3, 7), "the logs of ranks 0\u20132", "ASCEND"),
        (
            HEAD + "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.\n",
            "this log says that it is off",
            "NCCL_DEBUG",
        ),
        (
            HEAD + "[PG ID 0 PG GUID 0(default_pg) Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n",
            "py-spy dump --native of rank 3",
            "NCCL_DEBUG",
        ),
        (
            "[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n",
            "NCCL_DEBUG=INFO",
            "ASCEND",
        ),
        (
            "[rank1]: EI0006: [PID: 12] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did not send the data in time\n",
            "ASCEND_GLOBAL_LOG_LEVEL",
            "NCCL_DEBUG",
        ),
        (
            "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete\n",
            "",
            "TORCH_FR_BUFFER_SIZE",
        ),
    ],
)  # fmt: skip
def test_advice_names_what_the_log_lacks(log: str, words: str, others: str) -> None:
    fix = diagnose(trace_of(log)).findings[0].fix
    assert words in fix
    assert others not in fix
    assert "collect the dumps or logs of the other ranks" not in fix


@pytest.mark.parametrize(
    ("log", "limit"),
    [
        (timeout(3, 7), "10 min"),
        (
            "RuntimeError: [Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 30000 ms\n",
            "30 s",
        ),
    ],
)
def test_report_says_which_timeout_the_log_states(log: str, limit: str) -> None:
    assert f"timeout: the log states {limit}" in diagnose(trace_of(log)).findings[0].evidence
