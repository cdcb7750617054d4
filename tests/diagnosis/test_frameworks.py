"""Jobs whose training loop belongs to a framework: whose line is shown, and which thread's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis
from hangscope.diagnosis.processes.process_state import LOADER
from hangscope.diagnosis.processes.stacks import innermost, is_library, user_frames
from hangscope.trace.model import (
    ExceptionFacts,
    ExitFacts,
    Flag,
    Frame,
    Stack,
    ThreadStack,
    Trace,
)
from hangscope.trace.stack_dump import parse_sample
from tests.diagnosis.builder import SECOND, START, Job

TRAINER = "/opt/venv/lib/python3.11/site-packages/trainer/loop.py"
TENSOR = "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py"
MINE = (Frame("main", "/home/me/fit.py", 60), Frame("<module>", "/home/me/fit.py", 70))


@pytest.mark.parametrize(
    "file",
    [
        "/opt/pytorch/torch/multiprocessing/spawn.py",
        "/src/pytorch/torch/_functorch/aot_autograd.py",
        "/tmp/torchinductor_me/ab/cab3.py",
        "/home/me/.triton/cache/x/launcher.py",
        "<eval_with_key>.14",
        "pyarrow/error.pxi",
        "python/ray/_raylet.pyx",
        "/job/env.pex/.deps/trainer-1.0-py3-none-any.whl/trainer/loop.py",
    ],
)
def test_generated_and_packed_code_belongs_to_the_library(file: str) -> None:
    assert is_library(Frame("run", file, 3))


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/torch/train.py",
        "/home/me/triton/train.py",
        "/home/me/torch/multi.py",
        "/home/me/bin/train.py",
        "/tmp/ipykernel_7/3.py",
        "/data/hub/modules/remote_modules/model.py",
    ],
)
def test_user_code_is_not_library_code(file: str) -> None:
    assert not is_library(Frame("run", file, 3))
    assert not is_library(Frame("<module>", file, 3))


def test_script_of_an_installed_command_is_no_user_line() -> None:
    starter = Frame("<module>", "/opt/venv/bin/tune", 8)
    assert is_library(starter)
    assert user_frames((Frame("step", "/home/me/recipe.py", 4), starter)) == (
        Frame("step", "/home/me/recipe.py", 4),
    )
    assert not is_library(Frame("main", "/home/me/bin/train", 30))  # a program of the user's


@pytest.mark.parametrize(
    "file", [TRAINER, TRAINER.replace("trainer/loop", "hangscope/demos/train")]
)
def test_installed_program_is_shown_by_its_own_lines(file: str) -> None:
    main = Frame("<module>", file, 90)
    runpy = Frame("_run_code", "<frozen runpy>", 88)
    stack = (Frame("backward", TENSOR, 500), Frame("fit", file, 30), main, runpy)
    assert user_frames(stack) == (Frame("fit", file, 30), main)
    only_torch = (Frame("backward", TENSOR, 500), runpy)
    assert user_frames(only_torch) == only_torch


def loop(*inner: Frame, line: int) -> Stack:
    return (*inner, Frame("fit", TRAINER, line), *MINE)


def with_stacks(trace: Trace, stacks: dict[int, Stack]) -> Trace:
    """The trace, the last operation of each rank issued from another place."""
    records = trace.records.copy()
    for place, rank in enumerate(sorted(stacks)):
        last = np.flatnonzero(records["rank"] == rank)[-1]
        records["stack"][last] = len(trace.stacks) + place
    table = (*trace.stacks, *(stacks[rank] for rank in sorted(stacks)))
    return replace(trace, records=records, stacks=table)


def test_framework_frames_distinguish_calls_from_one_user_line() -> None:
    job = Job(3, live=True)
    job.steps(4)
    job.op(0, "all_gather", done=False)
    job.op(1, done=False)
    job.op(2, done=False)
    training = loop(Frame("backward", TENSOR, 500), Frame("training_step", TRAINER, 320), line=200)
    saving = loop(Frame("gather", TRAINER, 600), Frame("save", TRAINER, 410), line=240)
    found = diagnose(with_stacks(job.trace(), {0: saving, 1: training, 2: training}))
    assert found.culprits == (0,)
    sides = {side.ranks: side for side in found.findings[0].sides}
    assert [f.line for f in sides[(0,)].stack] == [410, 240, 60, 70]
    assert [f.line for f in sides[(1, 2)].stack] == [320, 200, 60, 70]
    assert sides[(0,)].differs_at == 1
    assert "compare loop.py:240 in fit with loop.py:200 in fit" in found.findings[0].fix


def test_torch_frames_are_not_shown_as_framework() -> None:
    job = Job(3, live=True)
    job.steps(4)
    job.op(0, "all_gather", done=False)
    job.op(1, done=False)
    job.op(2, done=False)
    stacks = {r: (Frame("backward", TENSOR, 500 if r else 900), *MINE) for r in range(3)}
    found = diagnose(with_stacks(job.trace(), stacks))
    assert all(side.stack == MINE for side in found.findings[0].sides)


# -- the thread that trains ------------------------------------------------------------------

WAITING = (Frame("wait", "/usr/lib/python3.11/threading.py", 320), *MINE)
SERVING = (Frame("main_loop", "/opt/venv/lib/python3.11/site-packages/ray/worker.py", 7),)
READING = (Frame("read", "/home/me/data.py", 41), Frame("train", "/home/me/fit.py", 30))


def test_stacks_with_different_outer_functions_have_no_common_fork() -> None:
    """The framework caught the exception, so the traceback lacks the frames outside of that."""
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    caught = (Frame("training_step", MINE[0].filename, 12), Frame("fit", TRAINER, 200))
    error = ExceptionFacts("ValueError", "bad batch", caught, START + SECOND)
    left = ExitFacts("exception", 1, at_ns=START + SECOND)
    job.rank(1, alive=False, exception=error, exit=left)
    sides = {side.ranks: side for side in diagnose(job.trace()).findings[0].sides}
    assert sides[(1,)].stack[0].line == 12
    assert {side.differs_at for side in sides.values()} == {None}


def missing(main: Stack, other: Stack, *, number: int = 77) -> str:
    """Where rank 1 is said to be, whose operations thread 77 issues."""
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    threads = (
        ThreadStack("MainThread", True, main, START, native_id=70),
        ThreadStack("train", False, other, START, native_id=number),
    )
    job.rank(1, threads=threads, pid=70)
    trace = job.trace()
    records = trace.records.copy()
    records["thread"] = np.where(records["rank"] == 1, 77, 0)
    found = diagnose(replace(trace, records=records))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    where = innermost(found.findings[0].sides[1].stack)
    assert where is not None
    return where.name


def test_waiting_main_thread_is_not_what_blocks_the_rank() -> None:
    assert missing(WAITING, READING) == "read"
    assert missing(SERVING, READING) == "read"


def test_working_main_thread_is_what_blocks_the_rank() -> None:
    mine = (Frame("load", "/home/me/data.py", 9), *MINE)
    assert missing(mine, READING) == "load"


def test_two_waiting_threads_leave_the_main_thread() -> None:
    assert missing(WAITING, (WAITING[0], *READING)) == "main"


def test_thread_without_operations_is_ignored() -> None:
    assert missing(WAITING, READING, number=78) == "main"


def test_samples_contain_kernel_thread_ids() -> None:
    text = (
        "T main 70 MainThread\nF 3\x00main\x00a.py\nT other 139999999999999 old\nF 4\x00f\x00b.py"
    )
    assert [(t.name, t.native_id) for t in parse_sample(text, 5)] == [
        ("MainThread", 70),
        ("old", 0),
    ]


# -- what is swallowed -----------------------------------------------------------------------


def swallowed(*, newest: bool = True, issued: bool = False) -> Diagnosis:
    """Three ranks end with status 0; ranks 0 and 2 failed in what rank 1 never issued."""
    job = Job(3)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False, flags=Flag.FAILED | Flag.RETIRED)
    if issued:
        job.op(1, done=False, flags=Flag.FAILED | Flag.RETIRED)
    if not newest:
        side = job.group(0, 1, 2)
        job.all(group=side)
    for rank in range(3):
        ended = ExitFacts("clean", code=0, at_ns=START + SECOND)
        job.rank(rank, exit=ended, alive=False, finalized=True)
    died = ExceptionFacts("ValueError", "no scale", READING, START, "train", False)
    job.rank(1, exception=died)
    return diagnose(job.trace())


def test_failure_swallowed_by_a_thread_is_no_healthy_end() -> None:
    found = swallowed()
    assert (found.verdict.value, found.culprits) == ("rank_exited", (1,))
    assert "thread train" in found.findings[0].fix
    assert "data.py:41" in found.findings[0].fix


def test_handled_failure_of_a_continuing_job_is_no_cause() -> None:
    assert swallowed(newest=False).verdict.value == "healthy"


def test_operation_issued_by_all_accuses_no_clean_exit() -> None:
    assert swallowed(issued=True).verdict.value == "healthy"


def test_upload_is_no_data_loader() -> None:
    for name, is_one in (("upload", False), ("thread_main", False), ("load_rows", True)):
        assert bool(LOADER.search(name)) is is_one


def test_unknown_reduce_ops_do_not_hide_a_siblings_history() -> None:
    job = Job(4)
    pairs = [job.group(0, 1, desc="shard"), job.group(2, 3, desc="shard")]
    for _ in range(6):
        job.all(group=pairs[0])
        job.all(group=pairs[1], reduce_op=None)  # killed before it was read
    job.op(0, "all_gather", group=pairs[0], done=False)
    job.op(1, group=pairs[0], done=False)
    job.all(group=pairs[1], reduce_op=None)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0,))


def test_two_unrelated_calls_of_one_name_are_described_as_two() -> None:
    job = Job(3)
    job.steps(4)
    job.op(0, "broadcast", dtype="Long", size=(1,), line=95, root=0, done=False)
    for rank in (1, 2):
        job.op(rank, "broadcast", line=92, root=0, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("dtype_mismatch", (0,))
    assert "same operations in the same order" in found.findings[0].fix
    assert "train.py:95" in found.findings[0].fix


@pytest.mark.parametrize(
    ("dtype", "advice"), [("Long", "same operations in the same order"), ("Half", "one dtype")]
)
def test_integers_and_floats_of_equal_size_are_two_different_calls(dtype: str, advice: str) -> None:
    """A rank that has left its loop counts something else; a cast is made between like kinds."""
    job = Job(3)
    job.steps(4)
    job.op(0, dtype=dtype, line=95, done=False)
    for rank in (1, 2):
        job.op(rank, line=92, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("dtype_mismatch", (0,))
    assert advice in found.findings[0].fix


def test_completion_unnoticed_before_a_stop_is_no_stuck_device() -> None:
    job = Job(3)
    job.steps(4)
    for rank in range(3):
        job.op(rank, done=rank != 1, flags=Flag.ASYNC)
    for _ in range(3):
        job.all("broadcast", root=0)
    for rank in (0, 2):
        job.op(rank, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))


def test_rank_without_later_completions_may_be_stuck_on_its_device() -> None:
    job = Job(3)
    job.steps(4)
    for rank in range(3):
        job.op(rank, done=rank != 1, flags=Flag.ASYNC)
    job.op(1, done=False)
    for rank in (0, 2):
        job.op(rank, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("stuck_collective", (1,))


def test_cycle_of_two_lines_says_which_to_compare() -> None:
    job = Job(3)
    side = job.group(0, 1, 2)
    job.steps(4)
    job.op(0, "barrier", line=21, done=False)
    for rank in (1, 2):
        job.op(rank, group=side, line=18, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (0,))
    assert "compare train.py:21 in train with train.py:18 in train" in found.findings[0].fix


def test_rank_failing_because_of_another_failure_is_not_certain() -> None:
    job = Job(3, live=True)
    job.steps(4)
    job.op(0, done=False)
    for rank in (1, 2):
        text = "Gloo connectFullMesh failed with [pair.cc] timed out connecting: Connection refused"
        error = ExceptionFacts("RuntimeError", text, MINE, START + SECOND, "MainThread", True)
        job.rank(rank, exception=error, exit=ExitFacts("exception", code=1), alive=False)
    found = diagnose(job.trace())
    assert found.confidence is not Confidence.CERTAIN


def test_later_end_of_a_peer_makes_no_device_stuck() -> None:
    job = Job(3)
    job.steps(4)
    for _ in range(3):
        for rank in range(3):
            job.op(rank, done=rank != 1, flags=Flag.ASYNC)
    for rank in (0, 2):
        job.op(rank, done=False)
    finding = diagnose(job.trace()).findings[0]
    assert (finding.culprits, finding.seq) == ((1,), 7)  # 5 and 6 are over: the peers have done 7


@pytest.mark.parametrize(
    ("name", "line", "users"),
    [
        ("load_shard", 7, True),
        ("<module>", 9, True),
        ("<lambda>", 3, True),
        ("<module>", 1, False),  # how multiprocessing starts a process
        ("__init__", 3, False),  # what a dataclass is given
    ],
)
def test_program_run_from_text_is_user_code(name: str, line: int, users: bool) -> None:
    """``python -c``, or `exec` of what a launcher has read."""
    assert is_library(Frame(name, "<string>", line)) is not users


def test_line_of_a_program_from_text_precedes_its_runner() -> None:
    called = Frame("reduce", "<string>", 12)
    stack = (
        Frame("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/x.py", 3),
        called,
        Frame("main", "/home/me/run.py", 4),
    )
    assert innermost(stack) == called


def test_what_a_framework_decides_on_one_rank_is_no_guard_of_the_program() -> None:
    job = Job(4)
    job.steps(5)
    for rank in range(4):
        early = rank == 2
        op = "barrier" if early else "broadcast"
        job.op(
            rank, op, line=2 if early else 1, function="stop" if early else "advance", done=False
        )
    trace = job.trace()
    stacks = [
        (Frame(stack[0].name, TRAINER, stack[0].line), *MINE) if stack[0].line < 3 else stack
        for stack in trace.stacks
    ]
    found = diagnose(replace(trace, stacks=tuple(stacks))).findings[0]
    assert found.culprits == (2,)
    assert "all ranks are inside fit.py:60 in main" in found.fix
    assert "on rank 2 alone" in found.fix
    assert "if rank == 0" not in found.fix
