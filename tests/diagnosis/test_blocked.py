"""What a live rank waits for, according to the library functions below its own line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.processes.process_state import End, ProcessState, process_of
from hangscope.diagnosis.wording.blocked import blocked_in
from hangscope.diagnosis.wording.instead import of_process
from hangscope.diagnosis.wording.rank_advice import missing
from hangscope.trace.facts import UNREAD_OUTPUT
from hangscope.trace.model import Frame, KernelWait, RankFacts, Stack, ThreadStack

LIB = "/usr/lib/python3.11"
MINE = Frame("fetch", "/home/me/subprocess.py", 7)
"""Named like a library module, but user code."""


def _process(*below: Frame, state: str = "sleeping") -> ProcessState:
    return ProcessState(1, End.ALIVE, state, stack=(*below, MINE), seen_state=state)


@pytest.mark.parametrize(
    ("filename", "words"),
    [
        (f"{LIB}/subprocess.py", "has not ended"),
        (f"{LIB}/queue.py", "that queue"),
        (f"{LIB}/multiprocessing/pool.py", "worker of its pool"),
        (f"{LIB}/concurrent/futures/_base.py", "worker of its pool"),
        (f"{LIB}/ssl.py", "time limit"),
        ("/venv/lib/python3.11/site-packages/urllib3/connection.py", "time limit"),
        ("/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", "data loader"),
        (f"{LIB}/threading.py", "another thread"),
        (f"{LIB}/asyncio/runners.py", "what it awaits"),
        (f"{LIB}/pdb.py", "remove the breakpoint"),
    ],
)
def test_blocking_call_is_described(filename: str, words: str) -> None:
    process = _process(Frame("wait", f"{LIB}/threading.py", 1), Frame("get", filename, 2))
    assert words in blocked_in(process)
    assert words in missing(process).fix


@pytest.mark.parametrize("called", [Frame("_wait", f"{LIB}/subprocess.py", 1), None])
def test_child_whose_output_nobody_reads(called: Frame | None) -> None:
    wait = KernelWait("child", UNREAD_OUTPUT, (7,), ("make (pid 7)",))
    process = replace(_process(*filter(None, [called])), wait=wait)
    assert "make (pid 7)" in blocked_in(process)
    assert "only this process can read" in blocked_in(process)


@pytest.mark.parametrize("state", ["busy", "sleeping"])
def test_compiling_rank_waits_for_nothing(state: str) -> None:
    """Its compiler is a subprocess, which must not be reported as the reason."""
    torch = "/venv/lib/python3.11/site-packages/torch"
    process = _process(
        Frame("wait", f"{LIB}/subprocess.py", 1),
        Frame("compile_file", f"{torch}/_inductor/codecache.py", 2),
        Frame("__call__", f"{torch}/_dynamo/convert_frame.py", 3),
        state=state,
    )
    assert "TORCH_LOGS=recompiles" in missing(process).fix
    assert "the program that it started" not in missing(process).fix


def test_blocking_call_of_another_thread_is_not_attributed_to_the_main_thread() -> None:
    """A checkpoint thread sleeps in its own code while the main thread waits for its result."""
    result = Frame("result", f"{LIB}/concurrent/futures/_base.py", 451)
    wait = KernelWait("thread", helpers=("python (pid 7, ended)",), processes=(8,))
    process = ProcessState(1, End.ALIVE, "sleeping", stack=(result,), wait=wait, waits_for=(2,))
    upload = process.in_thread((Frame("upload", "/home/me/save.py", 11),))
    assert "a worker of its pool" in blocked_in(process)
    assert blocked_in(upload) == ""
    assert upload.wait is not None
    assert (upload.wait.helpers, upload.waits_for) == (wait.helpers, ()), "those of the process"
    assert process.in_thread((result,)) == process


@pytest.mark.parametrize(
    ("wait", "ranks", "words"),
    [
        (KernelWait("socket", "10.0.0.7:80"), (), "a peer outside the job does not answer (10."),
        (KernelWait("socket", "127.0.0.1:80", (8,), ("python (pid 8)",)), (2,), "rank 2 does not"),
        (KernelWait("socket", "127.0.0.1:80", alone=True), (), "another thread of its own process"),
        (
            KernelWait("socket", "127.0.0.1:80", (8,), ("redis (pid 8)",)),
            (),
            "a peer outside the job does not answer (127.0.0.1:80, redis (pid 8))",
        ),
    ],
)
def test_silent_peer_of_a_socket_is_named(
    wait: KernelWait, ranks: tuple[int, ...], words: str
) -> None:
    """Both where Python's own socket code waits and where nothing but the system call shows it."""
    read = Frame("readinto", f"{LIB}/socket.py", 718)
    for stack in ((read, MINE), (MINE,)):
        process = ProcessState(1, End.ALIVE, "sleeping", stack=stack, wait=wait, waits_for=ranks)
        told = blocked_in(process)
        assert told.endswith("; give that call a time limit")
        assert (words in told) if stack[0] is read else (wait.what in told)
        assert ("rank 2" in told) is bool(ranks)
        assert ("redis" in told) is bool(wait.names and not ranks)
        assert ("own process" in told) is wait.alone


@pytest.mark.parametrize(
    ("innermost", "state", "waits"),
    [
        ("acquire", "sleeping", True),
        ("acquire", "running", False),
        ("exec_module", "sleeping", False),
    ],
)
def test_only_a_module_lock_is_held_by_another_thread(
    innermost: str, state: str, waits: bool
) -> None:
    """A module whose own code runs for long, or waits for something, is imported by this thread;
    and whoever waits for a lock is asleep."""
    bootstrap = "<frozen importlib._bootstrap>"
    below = Frame(innermost, bootstrap, 1), Frame("_find_and_load", bootstrap, 2)
    process = _process(*below, state=state)
    assert ("importing the same module" in blocked_in(process)) is waits


def test_ended_program_waits_for_its_threads() -> None:
    """No frame of its own code is left on the stack."""
    process = ProcessState(
        1, End.ALIVE, "sleeping", stack=(Frame("_shutdown", f"{LIB}/threading.py", 9),)
    )
    assert "its program is over" in blocked_in(process)


def test_unreturned_system_call_is_described() -> None:
    facts = RankFacts(1, alive=True, process_state="disk-sleep", gil_blocked=False)
    process = process_of(facts, None)
    assert (process.state, "network file system" in blocked_in(process)) == ("sleeping", True)


def test_advice_for_a_held_process_is_to_release_it() -> None:
    facts = RankFacts(1, alive=True, process_state="stopped", held_by="gdb (pid 7)")
    process = process_of(facts, None)
    assert of_process(process).doing == "held by gdb (pid 7)"
    assert missing(process, "on host a").fix == (
        "let the process go on: gdb (pid 7) holds it, on host a"
    )


def test_loop_that_sleeps_is_told_from_one_sleep() -> None:
    """The line of a sleep says nothing of what the loop around it waits for."""
    process = replace(_process(), wait=KernelWait("timer"))
    assert blocked_in(process) == ""
    assert "look at what that loop waits for" in blocked_in(replace(process, wakes=True))


def test_wait_for_a_thread_tells_that_there_is_none() -> None:
    process = replace(_process(Frame("wait", f"{LIB}/threading.py", 327)), lacks_threads=True)
    assert "none of its other threads runs Python" in blocked_in(process)


def test_helper_that_cannot_answer_needs_no_time_limit() -> None:
    wait = KernelWait("socket", "10.0.0.9:80", helpers=("python (pid 7, stopped)",))
    process = replace(_process(Frame("poll", f"{LIB}/selectors.py", 415)), wait=wait)
    assert blocked_in(process).endswith("python (pid 7, stopped))")


def test_unknown_state_is_not_described() -> None:
    assert blocked_in(None) == ""
    assert blocked_in(_process()) == ""
    assert blocked_in(_process(Frame("dumps", f"{LIB}/json/encoder.py", 1))) == ""
    assert blocked_in(_process(Frame("wait", f"{LIB}/subprocess.py", 1), state="busy")) == ""


_AWAITS = (
    Frame("select", f"{LIB}/selectors.py", 468),
    Frame("_run_once", f"{LIB}/asyncio/base_events.py", 1890),
    Frame("run_forever", f"{LIB}/asyncio/base_events.py", 607),
    MINE,
)


def _in_threads(main: Stack, *others: tuple[str, Stack]) -> ProcessState:
    threads = [ThreadStack(name, False, stack, 9) for name, stack in others]
    facts = RankFacts(1, alive=True, threads=(ThreadStack("MainThread", True, main, 9), *threads))
    return process_of(facts, None)


def test_thread_that_the_main_one_may_await_is_named() -> None:
    """The one of the pool before one that the program itself has started."""
    beat = ("beat", (Frame("beat", "/home/me/metrics.py", 12),))
    fetch = Frame("fetch", "/home/me/data.py", 30)
    pool = ("asyncio_0", (fetch, Frame("run", f"{LIB}/concurrent/futures/thread.py", 58)))
    library = ("tqdm", (Frame("wait", f"{LIB}/threading.py", 331),))
    told = blocked_in(_in_threads(_AWAITS, beat, library, pool))
    assert told == (
        "what it awaits never completes (thread asyncio_0 is at data.py:30 in fetch, thread beat "
        "is at metrics.py:12 in beat)"
    )
    assert blocked_in(_in_threads(_AWAITS, library)) == "what it awaits never completes"
    assert blocked_in(_in_threads((MINE,), beat, pool)) == "", "it waits for none of them"
