# ruff: noqa: E501
"""Lines that show a problem but not whose: they are reported and accuse nobody."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict

from .logs import trace_of

HEAD = "[rank1]:[W816 12:06:38.480071392 "


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[2025-06-22 16:13:55 TP0] Watchdog timeout (self.watchdog_timeout=300)", "no sign of progress"),
        ("[TRT-LLM] [RANK 1] [E] Hang detected on rank 1 in PyExecutor.", "reported by rank 1"),
        ("[E302 23:34:11.042376235 ProcessGroupXCCL.cpp:231] Work ran time out after 3009 milliseconds.", "timed out"),
        ("Original error: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait::0. This usually happens because of it.", "timed out"),
        ("Thread 3 (LWP 7):\n#0  __lll_lock_wait () at lowlevellock.S:136\n#1  0x00007f in f () from libx.so", "__lll_lock_wait"),
        (
            "Thread 15 (LWP 20):\n#0  0x00007f01 in bootstrapNetAccept (listenComm=0x7f) at bootstrap.cc:106\n"
            "#1  0x00007f02 in ncclCommInitRankSync (newcomm=0x52) at init.cc:840\n#2  0x00007f03 in ncclAsyncThreadMain (args_=0x6c) at group.cc:73",
            "creating a communicator",
        ),
        (
            "  thread #16, name = 'python', stop reason = signal SIGSTOP\n    frame #0: 0x00007fb0 libc.so.6`syscall + 29\n"
            "    frame #1: 0x00007fb1 libtorch_cuda.so`c10d::ProcessGroupNCCL::abort() + 664",
            "ProcessGroupNCCL::abort",
        ),
        (
            "[2026-01-29 13:12:37 PP1 TP1] Watchdog timeout (self.watchdog_timeout=300)\nProcess 88: sglang::scheduler_PP2_TP1\nPython v3.12.3 (/usr/bin/python3)\n"
            'Thread 88 (idle): "MainThread"\n    0x7fa2d1487d71 (libc.so.6)\n    c10d::ProcessGroupGloo::RecvWork::wait (libtorch_cpu.so)',
            "RecvWork::wait",
        ),
        (
            'Thread 42 (idle): "MainThread"\n    backward (torch/autograd/__init__.py:266)\n    step (src/train.py:4)\nThread 76 (idle)\nThread 79 (active)\n'
            "    all_gather_into_tensor (torch/distributed/distributed_c10d.py:2709)\n    fetch (deepspeed/comm/torch.py:219)\n",
            "communication",
        ),
        ("Fatal Python error: Aborted\n\nCurrent thread 0x00007f04 (most recent call first):\n  File \"/job/t.py\", line 4 in step", "process ended"),
        ("BaseCollectiveExecutor::StartAbort DEADLINE_EXCEEDED: Deadline Exceeded", "timed out"),
        ("HW Exception by GPU node-9 (Agent handle: 0x631351bb5a20) reason :GPU Hang", "device failed"),
        ("[Rank 1] NCCL watchdog thread terminated with exception: traceMap[thisSeq] INTERNAL ASSERT FAILED", "A watchdog failed"),
        (HEAD + 'ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0 Rank 1] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe', "serves the store"),
        (HEAD + "TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=67, addr=[h]:36214, remote=[h]:43145): Broken pipe", "serves the store"),
        ("[W tensorpipe_agent.cpp:725] RPC agent for worker1 encountered error when reading incoming request from worker0: eof", "connection"),
        ("algo-1:462:462 [0] ofi_process_cq:1031 NCCL WARN NET/OFI Request 0x7f6 completed with error. RC: 21.", "connection"),
        ("[ERROR] HCCL(80812,):2026-06-17-02:21:43.853 [transport_manager.cc:954] [86231][InitChannelStage][RunFailed]Transport init error! createLink para:rank[7], remoteRank[15]", "connection"),
        ("WARNING worker.py:1228 -- The node with ip: 172.31.57.35 has been marked dead because the detector has missed too many heartbeats from it.", "process ended"),
        ("node48:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error", "connection"),
        ("[ERROR] HCCL(271,python3):2025-07-23-03:49:57.177 [hccl_socket_manager.cc:778] [27][Wait]wait socket establish timeout, role[1] rank[12] timeout[120]", "connection"),
        ("EI0002: The Notify register has not received the Notify record from remote rankId[25 24].", "timed out"),
        ("[812.1] INFO: task python:44213 blocked for more than 120 seconds.", "The kernel waits"),
        ("[812.1] nfs: server fs1 not responding, still trying", "The kernel waits"),
        ("[812.1] LustreError: 11-0: fs-OST0003-osc: operation ost_write to node 10.0.0.9@o2ib failed: rc = -107", "The kernel waits"),
        ("Error: failed to run torchrun --nproc_per_node=4 train.py on 127.0.0.1", "process ended"),
    ],
)  # fmt: skip
def test_message_without_a_rank_is_reported(line: str, words: str) -> None:
    found = diagnose(trace_of(line + "\n"))
    assert (found.verdict, found.culprits) == (Verdict.INCONCLUSIVE, ())
    assert words in found.summary


@pytest.mark.parametrize(
    "line",
    [
        "[W tensorpipe_agent.cpp:546] RPC agent for worker1 encountered error when reading incoming request from master: EOF: end of file (this is expected to happen during shutdown)",
        "17 tests of 20 FAILED at 12:30 in 812 s",
        "/job:jax_worker/replica:0/task:3 has connected to coordination service. Incarnation: 42",
    ],
)  # fmt: skip
def test_message_printed_by_every_job_is_no_sign(line: str) -> None:
    assert not trace_of(line + "\n").claims


def test_exception_of_an_unknown_process_is_reported() -> None:
    text = (
        "(EngineCore_0 pid=268) ERROR 09-05 21:10:38 [core.py:702] Traceback (most recent call last):\n"
        '(EngineCore_0 pid=268) ERROR 09-05 21:10:38 [core.py:702]   File "/x/core.py", line 693, in run\n'
        "(EngineCore_0 pid=268) ERROR 09-05 21:10:38 [core.py:702] TimeoutError: RPC call to sample_tokens timed out.\n"
    )  # fmt: skip
    assert "sample_tokens" in diagnose(trace_of(text)).summary


def test_replicas_that_differ_accuse_no_rank_that_raises() -> None:
    """All ranks compare their gradients and raise; the parent of a spawn repeats one of them."""
    text = (
        "-- Process 3 terminated with the following error:\nTraceback (most recent call last):\n"
        '  File "/job/trainer.py", line 643, in train_step\n    self._check_grad_norms(grad_norm)\n'
        "FloatingPointError: Fatal error: gradients are inconsistent between workers.\n"
    )
    (finding,) = diagnose(trace_of(text)).findings
    assert (finding.verdict, finding.culprits) == (Verdict.INCONCLUSIVE, ())
    assert "replicas differ" in finding.summary
    assert "sync_parameters" in finding.fix
