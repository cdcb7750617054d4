"""What the main thread of a real process waits for, observed from outside."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.diagnosis.processes.process_state import End, ProcessState
from hangscope.diagnosis.wording.blocked import blocked_in
from hangscope.ring import process_identity
from hangscope.trace.facts import RUNNABLE, UNREAD_OUTPUT, KernelWait
from hangscope.trace.facts_codec import Decoder, Encoder
from hangscope.trace.live.follow import LiveRun
from hangscope.trace.load import load_trace
from hangscope.trace.model import RankFacts
from hangscope.trace.processes import kernel_waits
from hangscope.trace.processes.cgroups import cpu_limit
from hangscope.trace.processes.descriptors import processes_at_other_end
from hangscope.trace.processes.kernel_waits import (
    children_of,
    describe_process,
    helper_ticks,
    main_thread_wait,
)
from tests.live_rings import RingRank

HOLD = "import {module}, sys, time; f = open(sys.argv[1], 'w'); {call}; print(1, flush=True)"
FLOCK = HOLD.format(module="fcntl", call="fcntl.flock(f, fcntl.LOCK_EX)") + "; time.sleep(60)"
LOCKF = HOLD.format(module="fcntl", call="fcntl.lockf(f, fcntl.LOCK_EX)") + "; time.sleep(60)"


class Processes:
    """Python programs that are ended with the test."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[str]] = []

    def start(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        """Run a line of Python."""
        command = [sys.executable, "-c", code, *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        )
        self._all.append(process)
        return process

    def end(self) -> None:
        for process in self._all:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def processes() -> Iterator[Processes]:
    if not Path("/proc/self/wchan").exists() or Path("/proc/self/syscall").read_text() == "":
        pytest.skip("the kernel does not say what processes wait for")
    started = Processes()
    yield started
    started.end()


def _waits(pid: int, kind: str) -> KernelWait:
    """Poll until the process waits for that."""
    deadline_s = time.monotonic() + 10
    while (wait := main_thread_wait(pid)) is None or wait.kind != kind:
        if time.monotonic() > deadline_s:
            told = (Path("/proc") / str(pid) / "wchan").read_text()
            if told in ("", "0"):
                pytest.skip("the kernel does not say where this process waits")
            raise AssertionError((wait, told))
        time.sleep(0.01)
    return wait


@pytest.mark.parametrize("code", [FLOCK, LOCKF])
def test_wait_for_a_file_lock_names_its_holder(
    code: str, processes: Processes, tmp_path: Path
) -> None:
    path = str(tmp_path / "cache.lock")
    holder = processes.start(code, path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "1\n"
    first, second = (processes.start(code, path) for _ in range(2))
    for waiter in (first, second):
        wait = _waits(waiter.pid, "lock")
        assert (wait.what, wait.processes) == (path, (holder.pid,))
        assert wait.names[0].endswith(f"(pid {holder.pid})")
        assert wait.locked == ()
    held = main_thread_wait(holder.pid)
    assert held is not None
    assert held.locked == (path,)


def test_file_locked_by_another_process(processes: Processes, tmp_path: Path) -> None:
    """A process that polls for a lock is asleep with the file open."""
    path = str(tmp_path / "meta.db")
    holder = processes.start(FLOCK, path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "1\n"
    other = processes.start("import sys, time; f = open(sys.argv[1]); time.sleep(60)", path)
    wait = _waits(other.pid, "locked file")
    assert (wait.what, wait.processes) == (path, (holder.pid,))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("import os; r, w = os.pipe(); os.read(r, 1)", "pipe"),
        ("import os; r, w = os.pipe(); os.write(w, b'x' * 1_000_000)", "full pipe"),
    ],
)
def test_pipe_without_another_end(code: str, kind: str, processes: Processes) -> None:
    wait = _waits(processes.start(code).pid, kind)
    if not wait.alone:
        pytest.skip("others' descriptors are hidden here")
    assert wait.processes == ()


def test_work_of_child_processes_is_counted(processes: Processes) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    parent = processes.start(code)
    _waits(parent.pid, "child")
    before, until_s = helper_ticks(parent.pid), time.monotonic() + 20
    while helper_ticks(parent.pid) <= before:
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_sleep_is_told_from_waits_for_others(processes: Processes) -> None:
    sleeper = processes.start("import os; os.execvp('sleep', ['sleep', '60'])")
    assert _waits(sleeper.pid, "timer").processes == ()


def test_invisible_process_may_be_at_the_other_end_of_a_pipe(processes: Processes) -> None:
    """For example the container runtime that reads the output of its processes."""
    writer = processes.start("import os; os.write(1, b'x' * 1_000_000)")
    wait = _waits(writer.pid, "full pipe")
    hidden = processes_at_other_end(writer.pid, os.readlink(f"/proc/{writer.pid}/fd/1"), True)
    assert hidden in (None, [os.getpid()])
    assert wait.alone is False


def test_pipe_reader_that_does_not_read(processes: Processes) -> None:
    code = (
        "import os, subprocess; p = subprocess.Popen(['sleep', '60'], stdin=subprocess.PIPE); "
        "print(p.pid, flush=True); os.write(p.stdin.fileno(), b'x' * 1_000_000)"
    )
    writer = processes.start(code)
    assert writer.stdout is not None
    reader = int(writer.stdout.readline())
    wait = _waits(writer.pid, "full pipe")
    if not wait.processes:
        pytest.skip("others' descriptors are hidden here")
    assert wait.processes == (reader,)
    assert wait.names == (f"sleep 60 (pid {reader})",)


def test_unended_child_and_zombie(processes: Processes) -> None:
    code = (
        "import os, subprocess as s; p = s.Popen(['sleep', '60']); q = s.Popen(['sleep', '60']); "
        "q.kill(); print(p.pid, q.pid, flush=True); os.waitpid(p.pid, 0)"
    )
    parent = processes.start(code)
    assert parent.stdout is not None
    child, dead = map(int, parent.stdout.readline().split())
    assert _waits(parent.pid, "child").names == (f"sleep 60 (pid {child})",)
    deadline_s = time.monotonic() + 10
    while not (wait := _waits(parent.pid, "child")).helpers:
        assert time.monotonic() < deadline_s
    assert wait.helpers == (f"sleep (pid {dead}, killed by SIGKILL)",)
    os.kill(child, signal.SIGSTOP)
    while len((wait := _waits(parent.pid, "child")).helpers) < 2:
        assert time.monotonic() < deadline_s
    assert f"sleep 60 (pid {child}, stopped)" in wait.helpers


@pytest.mark.parametrize("shell", [False, True])
def test_child_whose_output_is_not_read(shell: bool, processes: Processes) -> None:
    command = "head -c 1000000 /dev/zero"
    words = f"'{command}; true', shell=True" if shell else repr(command.split())
    parent = processes.start(f"import subprocess as s; s.Popen({words}, stdout=s.PIPE).wait()")
    deadline_s = time.monotonic() + 10
    while (wait := _waits(parent.pid, "child")).what != UNREAD_OUTPUT:
        if processes_at_other_end(1, "pipe:[0]", True) is None:
            pytest.skip("others' descriptors are hidden here")
        assert time.monotonic() < deadline_s
    assert wait.processes == (children_of(parent.pid)[0],)


def test_child_whose_output_somebody_else_reads_is_not_to_blame(processes: Processes) -> None:
    code = (
        "import os, subprocess as s; r = s.Popen(['sleep', '60'], stdin=s.PIPE); "
        "s.Popen(['head', '-c', '1000000', '/dev/zero'], stdout=r.stdin); os.wait()"
    )
    parent, deadline_s = processes.start(code), time.monotonic() + 10
    while (wait := _waits(parent.pid, "child")).names[1:] == () or not _writes(wait.processes[-1]):
        assert time.monotonic() < deadline_s
    assert wait.what == ""


def _writes(pid: int) -> bool:
    return "pipe" in (Path("/proc") / str(pid) / "wchan").read_text()


def test_named_pipe_that_no_process_opens(processes: Processes, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "checkpoint")
    writer = processes.start("import sys; open(sys.argv[1], 'w')", str(tmp_path / "checkpoint"))
    assert _waits(writer.pid, "fifo").what == ""


def test_terminal_at_which_nobody_types(processes: Processes) -> None:
    reader = processes.start("import os, pty; os.read(pty.openpty()[1], 1)")
    wait = _waits(reader.pid, "terminal")
    assert wait.what.startswith("/dev/pts/")
    words = blocked_in(ProcessState(0, End.ALIVE, "sleeping", wait=wait))
    assert words.startswith(f"it waits for somebody to type at {wait.what}")


@pytest.mark.parametrize("limit", ["None", "60"])
def test_address_of_a_silent_peer(limit: str, processes: Processes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            f"import socket; c = socket.create_connection(('127.0.0.1', {port})); "
            f"c.settimeout({limit}); c.recv(1)"
        )
        assert _waits(processes.start(code).pid, "socket").what == f"127.0.0.1:{port}"


@pytest.mark.parametrize("address", ["127.0.0.1", "::"])
def test_process_of_a_silent_peer(address: str, processes: Processes) -> None:
    """Of one connection, a server for both families has an IPv6 end and its client an IPv4 one."""
    both = address == "::"
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server((address, 0), family=family, dualstack_ipv6=both) as server:
        port = server.getsockname()[1]
        client = processes.start(
            f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)"
        )
        accepted, _ = server.accept()
        with accepted:
            wait = _waits(client.pid, "socket")
    assert (wait.what, wait.processes, wait.alone) == (f"127.0.0.1:{port}", (os.getpid(),), False)
    assert wait.names[0].endswith(f"(pid {os.getpid()})")


def test_peer_in_the_same_process(processes: Processes) -> None:
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "c = socket.create_connection(s.getsockname()); a, _ = s.accept(); c.recv(1)"
    )
    wait = _waits(processes.start(code).pid, "socket")
    assert (wait.processes, wait.alone) == ((), True)


def test_wait_for_a_peer_on_the_same_host_names_the_socket(processes: Processes) -> None:
    code = "import socket; a, b = socket.socketpair(); a.recv(1)"
    assert "Unix socket" in _waits(processes.start(code).pid, "socket").what


def test_lock_inside_a_process_names_no_other_process(processes: Processes) -> None:
    code = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
    assert _waits(processes.start(code).pid, "thread").processes == ()


SEMAPHORE = """
import multiprocessing, sys, time

def take(lock, hold_s):
    lock.acquire()
    print(1, flush=True)
    time.sleep(hold_s)

context = multiprocessing.get_context("fork")
lock = context.Lock()
child = context.Process(target=take, args=(lock, float(sys.argv[1])), daemon=True)
child.start()
if sys.argv[1] == "0":
    child.join()
else:
    time.sleep(0.5)
lock.acquire()
"""


def test_semaphore_of_a_process_that_has_ended(processes: Processes) -> None:
    wait = _waits(processes.start(SEMAPHORE, "0").pid, "semaphore")
    assert (wait.processes, wait.alone) == ((), True)


def test_semaphore_that_another_process_can_hold(processes: Processes) -> None:
    waiter = processes.start(SEMAPHORE, "60")
    wait = _waits(waiter.pid, "semaphore")
    assert (list(wait.processes), wait.alone) == (children_of(waiter.pid), False)


def test_thread_that_is_joined_is_no_other_process(processes: Processes) -> None:
    """The kernel wakes whoever joins a thread as if others shared that word."""
    code = (
        "import ctypes, threading, time; id = threading.Thread(target=time.sleep, args=(60,)); "
        "id.start(); ctypes.CDLL(None).pthread_join(ctypes.c_void_p(id.ident), None)"
    )
    assert _waits(processes.start(code).pid, "thread").processes == ()


def test_repeated_observations_show_the_start_of_a_wait(
    processes: Processes, tmp_path: Path
) -> None:
    path = str(tmp_path / "cache.lock")
    holder = processes.start(FLOCK, path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "1\n"
    waiter = processes.start(FLOCK, path)
    _waits(waiter.pid, "lock")
    for rank, process in enumerate((holder, waiter)):
        RingRank(
            tmp_path,
            rank,
            2,
            pid=process.pid,
            start_ticks=process_identity.start_ticks(process.pid),
            boot_id=process_identity.boot_id(),
            pid_namespace=process_identity.pid_namespace(),
        ).sample(7)
    run = LiveRun(tmp_path)
    first, second = (run.look().ranks for _ in range(2))
    run.close()
    for rank in (0, 1):
        one, two = first[rank].wait, second[rank].wait
        assert one is not None
        assert two is not None
        assert (two.locked, two.kind == "lock") == (((path,), ())[rank], rank == 1)
        assert two.is_same(one)
        assert (two.since_ns, two.seen_ns > one.seen_ns) == (one.since_ns, True)
    assert load_trace([tmp_path]).ranks[1].wait is not None


def test_nonexistent_process_has_no_wait(tmp_path: Path) -> None:
    assert main_thread_wait(7, proc=tmp_path) is None
    assert cpu_limit(7, tmp_path, tmp_path) == ""


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"cpu.max": "5000 1000000"}, "0.5% of one"),
        ({"cpu.max": "max 100000"}, ""),
        ({"cpu.max": "200000 100000"}, ""),
        ({"cpu.max": "nonsense"}, ""),
    ],
)
def test_small_share_of_a_cpu_is_told(files: dict[str, str], told: str, tmp_path: Path) -> None:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text("0::/job\n")
    (tmp_path / "groups" / "job").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "groups" / "job" / name).write_text(text)
    assert cpu_limit(7, tmp_path / "proc", tmp_path / "groups") == told
    assert cpu_limit(7, tmp_path / "proc", tmp_path / "groups", below=0.001) == ""


@pytest.mark.parametrize(("share", "kind"), [(0.002, RUNNABLE), (0.5, "thread")])
def test_throttled_process_waits_for_its_cpu_quota(
    share: float, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads wait for each other, because each runs only now and then."""

    def limit(pid: int, proc: Path, *, below: float = 1.0) -> str:
        return "some" if share < below else ""

    monkeypatch.setattr(kernel_waits, "cpu_limit", limit)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "wchan").write_text("futex_wait_queue")
    wait = main_thread_wait(7, proc=tmp_path)
    assert wait is not None
    assert wait.kind == kind


def test_wait_survives_a_round_trip() -> None:
    wait = KernelWait("lock", "/a", (7,), ("x (pid 7)",), True, ("/b",), ("y",), 1, 2)
    assert Decoder().facts(KernelWait, Encoder().facts(wait)) == wait
    assert RankFacts(0, wait=wait).wait == wait


@pytest.mark.parametrize("said", [None, 7, [], "lock"])
def test_impossible_wait_is_none(said: object) -> None:
    assert not Decoder().values(RankFacts, {"wait": said}).get("wait")


def test_forged_wait_does_no_harm() -> None:
    said = {"kind": 7, "processes": ["x", None, 3], "names": 5, "since_ns": "soon", "helpers": {}}
    assert Decoder().facts(KernelWait, said) == KernelWait(processes=(3,))


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["sleep", "60"], "sleep 60"),
        (["sh", "-c", "sleep 60; : secret"], "sh"),
        (["timeout", "--foreground", "60", "sleep", "60"], "timeout"),
        (["cat", "-", "hf_secret"], "cat"),
        (["tail", "/dev/null/eyJhbGciOi.J9", "-f", "/dev/null"], "tail"),
    ],
)
def test_process_arguments_are_not_reported(arguments: list[str], shown: str) -> None:
    """They may be secrets, and reports go into a log."""
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        # The arguments are what a new program gets last: until then the name may be the old one's.
        given = b"".join(argument.encode() + b"\0" for argument in arguments)
        deadline_s = time.monotonic() + 10
        while Path(f"/proc/{process.pid}/cmdline").read_bytes() != given:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        told = describe_process(process.pid)
    finally:
        process.kill()
        process.wait()
    assert told.startswith(f"{shown} (pid {process.pid}")
