"""Output of Gloo, DDP's reducer, rendezvous and launchers about a rank, and how ranks ended."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.job_log.read import read_job_log
from hangscope.trace.load import load_trace

from .logs import claims, overdue, timeout, trace_of
from .torchrun_table import table


@pytest.mark.parametrize(
    ("line", "kind", "accused", "reporter"),
    [
        (
            "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 10000 ms",
            "monitored_barrier",
            (1, 3),
            0,
        ),
        (
            "[E ProcessGroupGloo.cpp:138] [Rank 0]: Rank 2 failed to pass monitoredBarrier in "
            "10000 ms",
            "monitored_barrier",
            (2,),
            0,
        ),
        (
            "Rank 3 successfully reached monitoredBarrier, but received errors while waiting for "
            "send/recv from rank 0. Please check rank 0 logs for faulty rank.",
            "monitored_barrier",
            (),
            3,
        ),
        (
            "[rank2]: RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
            "1800000ms for recv operation to complete",
            "timeout",
            (),
            2,
        ),
        (
            "[rank2]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
            "[10.0.0.2]:1234",
            "network_error",
            (),
            2,
        ),
        (
            "[rank2]: [enforce fail at /x/gloo/transport/tcp/pair.cc:446] op.preamble.length <= "
            "op.nbytes. 20000 vs 16",
            "size_mismatch",
            (),
            2,
        ),
        (
            "Parameter indices which did not receive grad for rank 1: 4 5",
            "ddp_unused_parameters",
            (1,),
            1,
        ),
        (
            "[rank1]: RuntimeError: Expected to mark a variable ready only once. This error is",
            "ddp_marked_twice",
            (1,),
            1,
        ),
        (
            "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 8 params, while "
            "rank 1 has inconsistent 0 params.",
            "ddp_model_mismatch",
            (1,),
            0,
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. "
            "3/4 clients joined.",
            "rendezvous",
            (),
            None,
        ),
        (
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, "
            "for key: store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)",
            "rendezvous",
            (1,),
            0,
        ),
        (
            "Timed out waiting on barrier on rank 0, for key prefix: torchelastic/x "
            "(world_size=4, missing_ranks=[2, 3], timeout=300)",
            "missing_ranks",
            (2, 3),
            0,
        ),
        (
            "[rank3]: torch.distributed.DistBackendError: [3] is setting up NCCL communicator and "
            "retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but "
            "store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//0",
            "rendezvous",
            (),
            3,
        ),
        (
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU "
            "1 has a total capacity of 79.15 GiB",
            "oom",
            (1,),
            1,
        ),
        (
            "[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than "
            "1EB memory",
            "size_mismatch",
            (),
            1,
        ),
        (
            "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered",
            "device_error",
            (1,),
            1,
        ),
        (
            "node1:13572:13600 [2] misc/socket.cc:58 NCCL WARN Call to recv from 10.0.0.3<40001> "
            "failed : Connection reset by peer",
            "network_error",
            (),
            None,
        ),
        (
            "[ 12.3] NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name=python3, GPU has fallen off",
            "device_error",
            (),
            None,
        ),
        (
            "[rank0]: hangscope.toolkit.barrier.BarrierTimeout: barrier for 'load' in group "
            "default: ranks 1-2, 7 of 8 did not come within 60 s. Missing: rank 1 on n0; rank 2 on "
            "n0. Arrived: 0, 3-6. Likely: a late rank.",
            "barrier_timeout",
            (1, 2, 7),
            0,
        ),
        (
            "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed.",
            "other",
            (),
            None,
        ),
    ],
)
def test_line_accuses_the_ranks_that_it_names(
    line: str, kind: str, accused: tuple[int, ...], reporter: int | None
) -> None:
    trace = trace_of(line + "\n")
    found = claims(trace, kind)
    assert [(c.accused, c.reporter) for c in found] == [(accused, reporter)]


@pytest.mark.parametrize(
    ("code", "trace_text", "kind", "signal", "accused"),
    [
        (-9, "Signal 9 (SIGKILL) received by PID 5002", "signal", 9, (9,)),
        (-11, "Signal 11 (SIGSEGV) received by PID 5002", "signal", 11, (9,)),
        (-15, "Signal 15 (SIGTERM) received by PID 5002", "signal", 15, None),
        (-6, "Signal 6 (SIGABRT) received by PID 5002", "signal", 6, None),
        (137, "To enable traceback see: https://pytorch.org", "signal", 9, (9,)),
        (3, "To enable traceback see: https://pytorch.org", "code", None, (9,)),
    ],
)
def test_launchers_table_tells_how_its_rank_ended(
    code: int, trace_text: str, kind: str, signal: int | None, accused: tuple[int, ...] | None
) -> None:
    trace = trace_of(table(code, trace_text))
    facts = trace.ranks[9]
    assert facts.exit is not None
    assert (facts.exit.kind, facts.exit.signal) == (kind, signal)
    assert facts.exit.by_launcher is (code == -15)
    assert (facts.host, facts.pid, facts.local_rank) == ("node1", 5002, 1)
    found = claims(trace, "launcher_failure")
    assert [c.accused for c in found] == ([] if accused is None else [accused])


def test_processes_that_were_signalled_are_not_to_blame() -> None:
    api = "site-packages/torch/distributed/elastic/multiprocessing/api.py:897]"
    trace = trace_of(
        "WORLD_SIZE=4\n"
        f"W0816 12:10:05.123456 4711 {api} Sending process 5000 closing signal SIGTERM\n"
        f"W0816 12:10:05.123456 4711 {api} Sending process 5001 closing signal SIGTERM\n"
        f"W0816 12:10:05.123456 4711 {api} Sending process 5003 closing signal SIGTERM\n"
        f"E0816 12:10:05.123456 4711 {api} failed (exitcode: -9) local_rank: 2 (pid: 5002) of "
        "binary: /usr/bin/python\n"
    )
    ends = {r: f.exit for r, f in trace.ranks.items()}
    assert {r for r, e in ends.items() if e is not None and e.by_launcher} == {0, 1, 3}
    assert ends[2] is not None
    assert ends[2].signal == 9


def test_srun_names_tasks() -> None:
    trace = trace_of(
        "srun: error: node3: task 5: Killed\n"
        "srun: error: node2: tasks 0-1: Exited with exit code 1\n"
        "srun: error: node3: task 6: Out Of Memory\n"
    )
    ends = {r: f.exit for r, f in trace.ranks.items()}
    assert ends[5] is not None
    assert ends[5].signal == 9
    assert ends[1] is not None
    assert ends[1].code == 1
    assert ends[6] is not None
    assert ends[6].kind == "oom"
    assert trace.ranks[5].host == "node3"


def test_mpirun_names_the_rank() -> None:
    trace = trace_of(
        "mpirun noticed that process rank 2 with PID 77 on node n3 exited on signal 11 "
        "(Segmentation fault).\n"
    )
    assert trace.ranks[2].exit is not None
    assert trace.ranks[2].exit.signal == 11


def test_restart_begins_a_new_attempt() -> None:
    trace = trace_of(
        timeout(0, 10)
        + "I0816 12:20:00.123456 4711 torch/distributed/elastic/agent/server/api.py:900]"
        " [default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
        + timeout(1, 20)
    )
    assert overdue(trace) == [(1, "0", "all_reduce", 20)]
    assert trace.warnings == ("job.log: holds 1 earlier attempt; this report is about the newest",)


def test_own_report_is_no_evidence() -> None:
    report = (
        "[hangscope] Rank 2 never joined all_reduce #118 in group dp\n"
        "  VERDICT missing_rank\n  rank 2 RuntimeError: CUDA error: unspecified launch failure\n"
        "  log: Ranks 1, 3 failed to pass monitoredBarrier in 10000 ms\n"
        "[hangscope] full report: hangscope analyze x\n"
    )
    trace = trace_of(report + timeout(1, 118))
    told = [c for c in trace.claims if c.text]  # places have no text
    assert {c.kind for c in told} == {"timeout", "own_report"}
    (repeated,) = (c for c in told if c.kind == "own_report")
    assert repeated.text == "Rank 2 never joined all_reduce #118 in group dp"
    assert (repeated.accused, repeated.certain) == ((), False)


def test_own_report_that_was_withdrawn_is_not_repeated() -> None:
    first = "[hangscope] Rank 2 never joined all_reduce #7 in group dp\n"
    second = "[hangscope] Rank 1 never joined barrier #9 in group dp\n"
    clear = "[hangscope] moving again after 10 s\n"
    assert [c.text for c in claims(trace_of(first + second), "own_report")] == [
        "Rank 2 never joined all_reduce #7 in group dp",
        "Rank 1 never joined barrier #9 in group dp",
    ]
    told = claims(trace_of(first + clear + second), "own_report")
    assert [c.text for c in told] == ["Rank 1 never joined barrier #9 in group dp"]
    ended = "  CRASH   4 ranks · gloo · no progress for 2 s · post-mortem\n"
    told = claims(trace_of(first + ended + second), "own_report")  # a launcher has begun anew
    assert [c.text for c in told] == ["Rank 1 never joined barrier #9 in group dp"]
    answer = diagnose(trace_of(first + clear))
    assert answer.verdict.value == "inconclusive"
    assert answer.summary.endswith("that it hung, and then: moving again after 10 s")


def test_srun_labels_are_ranks_only_if_every_line_has_one() -> None:
    noise = "".join(f"{i % 4}: step {i} loss 2.0\n" for i in range(40))
    labelled = noise + "3: RuntimeError: CUDA error: unspecified launch failure\n"
    trace = trace_of(labelled)
    assert claims(trace, "device_error")
    plain = "".join(f"epoch {i}\n" for i in range(40)) + "3: CUDA error: unknown error\n"
    assert list(trace_of(plain).ranks) == []


def test_json_lines_are_unwrapped(tmp_path: Path) -> None:
    import json

    lines = [
        json.dumps({"log": ln + "\n", "stream": "stderr"}) for ln in timeout(1, 118).splitlines()
    ]
    path = tmp_path / "container.json"
    path.write_text("\n".join(lines) + "\n")
    assert overdue(load_trace([path])) == [(1, "0", "all_reduce", 118)]


def test_file_per_rank_gives_the_rank(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank_{rank}.log").write_text(
            "step 1\nTraceback (most recent call last):\n"
            f'  File "/a.py", line 3, in f\n    x\nValueError: {rank}\n'
        )
    trace = load_trace([tmp_path])
    assert {r: f.exception.message for r, f in trace.ranks.items() if f.exception} == {
        0: "0",
        1: "1",
    }


@pytest.mark.long
def test_memory_does_not_grow_with_the_log() -> None:
    import tracemalloc

    class Endless(io.RawIOBase):
        def __init__(self, blocks: int) -> None:
            self.left = blocks
            self.block = b"step 17 loss 2.345 lr 1e-4 grad 0.3 tokens 123456\n" * 5000

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return self.block if self.left >= 0 else b""

    tracemalloc.start()
    fragments = read_job_log(Endless(200), path="big.log", year=2025)  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20  # of 50 MB
    assert fragments[0].warnings == ("no line in it that HangScope knows",)


def test_logs_of_attempts_are_not_mixed(tmp_path: Path) -> None:
    for attempt, seq in ((0, 10), (1, 20)):
        folder = tmp_path / f"attempt_{attempt}" / "0"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(timeout(0, seq))
    trace = load_trace([tmp_path])
    assert overdue(trace) == [(0, "0", "all_reduce", 20)]
    assert len(trace.warnings) == 1
