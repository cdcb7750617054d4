"""A job of any size that does a little, in one of several manners; prints what it found."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

from hangscope.recording.limits import MAX_KNOWN_FRAMES, MAX_PLANS

MANNER = sys.argv[1] if len(sys.argv) > 1 else "plain"
DIRECTORY = os.environ.get("HANGSCOPE_DIR", "")


class Numbers(Dataset):
    """Its workers report how many rings there are."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


def say(*words: object) -> None:
    """One line in one write: other ranks share this output."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def child() -> None:
    """In a process that is no rank."""
    value = torch.ones(2)
    assert float(value.sum()) == 2.0


def main() -> int:
    dist.init_process_group("gloo")
    value = torch.ones(4) * (dist.get_rank() + 1)
    dist.all_reduce(value)
    extra: object = ""
    if MANNER == "delete":
        shutil.rmtree(DIRECTORY)
    elif MANNER == "many":
        for _ in range(200):
            dist.all_reduce(torch.ones(2))
    elif MANNER == "children":
        extra = children()
    elif MANNER == "flood":
        first, second, third = flood(), flood(), flood()
        extra = f"grew by {third - second} MiB after {first}"
    elif MANNER == "threads-and-stop":
        threads_and_stop()
    elif MANNER == "os-wait":
        mine = subprocess.Popen([sys.executable, "-c", "pass"]).pid
        extra = os.wait()[0] == mine
        try:
            os.wait()
        except ChildProcessError:
            extra = f"{extra}, no other"
    elif MANNER == "alarm":
        extra = alarms()
    elif MANNER == "thread":
        thread = threading.Thread(target=lambda: 1 / 0, name="mine")
        thread.start()
        thread.join()
    elif MANNER == "thread-exit":
        thread = threading.Thread(target=lambda: sys.exit(7))
        thread.start()
        thread.join()
    elif MANNER == "raise":
        raise ValueError("the job's own")
    elif MANNER == "sys-exit":
        sys.exit(3)
    elif MANNER == "os-exit":
        say("RESULT", value.tolist())
        os._exit(5)
    elif MANNER == "terminate":
        say("RESULT", value.tolist())
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    elif MANNER == "at-exit":
        keep_busy()
        say("RESULT", value.tolist(), extra)
        return 0
    elif MANNER == "late-exit":
        outlive_python()
    dist.destroy_process_group()
    say("RESULT", value.tolist(), extra)
    return 0


def outlive_python() -> None:
    """Let the C library sleep for longer than a heartbeat after Python has ended."""
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc.sleep, ctypes.c_void_p), ctypes.c_void_p(2), None)


def children() -> list[object]:
    """Every kind of child process."""
    code = "import torch, torch.distributed as d; print('child', d.is_available())"
    seen: list[object] = [
        fork(),
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip(),
    ]
    for context in ("fork", "spawn"):
        loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context=context)
        seen.append(sum(float(item) for item in loader))
    process = mp.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    seen.append(process.exitcode)
    return seen


def fork() -> str:
    """A child that does what it can to disturb the parent's ring."""
    import hangscope

    pid = os.fork()
    if pid == 0:
        try:
            everything = hangscope.record("mine:all_reduce", torch.ones(3), ranks=[0])
            with hangscope.phase("in the child"), everything:
                pass
            sys.excepthook(ValueError, ValueError("in the child"), None)
        finally:
            os._exit(0)
    return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def alarms() -> str:
    """Every exception of the job's own signal handler arrives, wherever it interrupts us."""

    class Alarm(Exception):  # noqa: N818 - its name is the job's business
        """What the job's own signal handler raises."""

    fired, armed = [0], [False]

    def on_alarm(number: int, frame: object) -> None:
        if armed[0]:
            armed[0] = False
            fired[0] += 1
            raise Alarm

    signal.signal(signal.SIGALRM, on_alarm)
    value = torch.ones(2)
    caught = 0
    end_s = time.monotonic() + 1.5

    def issue() -> None:
        """A function, because in Python 3.13 the jump of a loop right in a ``try`` escapes it."""
        armed[0] = True
        while time.monotonic() < end_s:
            dist.all_reduce(value)
        armed[0] = False

    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0007)
    while time.monotonic() < end_s:
        try:
            issue()
        except Alarm:
            caught += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    return f"missed {fired[0] - caught} of {fired[0] > 50}"


def flood() -> int:
    """More stacks and shapes than are remembered, all new; the memory used after it, in MiB."""
    for i in range(MAX_KNOWN_FRAMES // 100 + 10):
        code: dict[str, object] = {"dist": dist, "value": torch.ones(i % (MAX_PLANS + 10) + 1)}
        exec(  # each is a code object of its own
            "def deep(n):\n  return deep(n - 1) if n else dist.all_reduce(value)\n", code
        )
        code["deep"](100)  # type: ignore[operator]
    return psutil.Process().memory_info().rss >> 20


def threads_and_stop() -> None:
    """Recording ends and begins again while other threads are inside operators."""
    import hangscope
    from hangscope.recording.api import current_session

    recorded, over = current_session() is not None, threading.Event()
    groups = [dist.new_group([0]) for _ in range(3)]

    def issue(group: dist.ProcessGroup) -> None:
        while not over.is_set():
            works = [dist.all_reduce(torch.ones(8), group=group, async_op=True) for _ in range(9)]
            for work in works:
                work.wait()

    threads = [threading.Thread(target=issue, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for _ in range(20):
        time.sleep(0.02)
        if recorded:
            hangscope.stop()
            assert hangscope.start()
    over.set()
    for thread in threads:
        thread.join()


def keep_busy() -> None:
    """Daemon threads and destructors that issue operations while the interpreter goes down."""

    def for_ever() -> None:
        group = dist.new_group([dist.get_rank()]) if dist.get_world_size() == 1 else None
        while True:
            dist.all_reduce(torch.ones(2), group=group)

    class AtTheEnd:
        def __del__(self) -> None:
            try:
                dist.barrier()
            except Exception:
                pass

    globals()["at_the_end"] = AtTheEnd()
    threading.Thread(target=for_ever, daemon=True).start()
    time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
