"""What a rank waits for below its own code: a queue, a lock, a peer, a worker."""

from __future__ import annotations

import re

from hangscope.diagnosis.processes.process_state import ProcessState
from hangscope.diagnosis.processes.stacks import (
    base,
    innermost,
    is_library,
    user_frames,
    where,
)
from hangscope.diagnosis.wording.phrases import rank_s
from hangscope.trace.facts import RUNNABLE, UNREAD_OUTPUT
from hangscope.trace.model import KernelWait, Stack

_TRIES_AGAIN = "it sleeps there again and again: look at what that loop waits for"
_NO_ANSWER = "a peer outside the job does not answer"
_LIMIT = "; give that call a time limit"
_COMPILES = (
    (
        r"torch/_dynamo/convert_frame\.py$",
        "torch.compile is compiling there; TORCH_LOGS=recompiles tells why",
    ),
    (r"/triton/compiler/", "Triton is compiling a kernel there"),
)
"""Library files that work for long, in a subprocess or by themselves."""
_DEVICE = re.compile(r"torch/cuda/(?:__init__|streams)\.py:synchronize$")
_IMPORTED_ELSEWHERE = "another thread of its own process is importing the same module"
_BLOCKED_IN_CALL = (
    (
        r"threading\.py:_shutdown$",
        "its program is over, and a thread that it started has not ended",
    ),
    (r"(?:multiprocessing/queues|queue)\.py:put$", "that queue is full, and nobody empties it"),
    (r"^<frozen importlib\._bootstrap>:acquire$", _IMPORTED_ELSEWHERE),
    (
        r"multiprocessing/synchronize\.py:wait(?:_for)?$",
        "no other process sets the event or notifies the condition that it waits for",
    ),
    (r"queue\.py:join$", "items of that queue are never marked as done (task_done)"),
)
"""Library functions that wait for something else than others in their file."""
_BLOCKED_IN = (
    (r"hangscope/recording/store_waits\.py$", "nobody sets the key that it waits for in the store"),
    (
        r"torch/utils/data/",
        "a worker of its data loader delivers nothing: py-spy dump of that child process shows "
        "where it is; one forked while a thread held a lock may wait for that lock forever",
    ),
    (
        r"torch/utils/file_baton\.py$",
        "another process is building that extension, or was killed while building it: then delete "
        "the file `lock` (below ~/.cache/torch_extensions)",
    ),
    (r"torch/(?:futures|distributed/rpc)/", "another rank has not answered a remote call"),
    (r"(?:^|/)(?:pdb|bdb)\.py$", "a debugger waits for input: remove the breakpoint"),
    (r"(?:^|/)ray/(?:_private|actor|util|train)", "a Ray task or actor has not answered"),
    (r"(?:^|/)(?:filelock|portalocker|fasteners)/", "another process holds that file lock"),
    (r"subprocess\.py$", "the program that it started has not ended"),
    (r"multiprocessing/pool\.py$|concurrent/futures/", "a worker of its pool has not answered"),
    (r"(?:multiprocessing/queues|queue)\.py$", "nobody puts anything into that queue"),
    (r"multiprocessing/", "another process has not answered"),
    (r"asyncio/", "what it awaits never completes"),
    (
        r"(?:^|/)(?:socket|ssl|selectors)\.py$|http/client\.py$|urllib|requests/|botocore|grpc|fsspec",
        _NO_ANSWER,
    ),
    (r"threading\.py$", "it waits for another thread of its own process"),
)
"""Library files that a rank can be blocked in, and what it waits for there."""
_ASKS_AGAIN = re.compile(r"torch/utils/file_baton\.py$|/(?:filelock|portalocker|fasteners)/")
"""Library files whose waits are many short sleeps."""
_WAITS_FOR = {
    "lock": "it waits for the lock on {what}, held by {holder}",
    "locked file": "it sleeps, perhaps to try again: there is a lock on {what}, held by {holder}",
    "child": "it waits for a process that it started: {names}",
    "exec": "the process runs another program by now (exec): {names}",
    "fifo": "it is opening a named pipe (FIFO) whose other end nobody has opened",
    "socket": "it waits for {what}",
    "terminal": "it waits for somebody to type at {what}: remove the breakpoint or the question",
}
"""Kinds of `KernelWait` that need no further words, and their meaning."""
_SHOWN_THREADS = 2
_UNNAMED = {"socket": "a connection"}
_IN_KERNEL = (
    "its main thread is in an uninterruptible system call (state D): look for a disk or a network "
    "file system that does not answer"
)


def blocked_in(process: ProcessState | None) -> str:
    """What the call below the user's innermost line waits for, if known."""
    if process is None:
        return ""
    if compiles := _first_match(_COMPILES, [path for path, _ in _below(process)]):
        return compiles
    if process.seen_state == "busy":
        return ""
    words, details = _with_kernel(_in_library(process), process)
    if not words:
        return _IN_KERNEL if process.in_kernel else ""
    wait = process.wait
    stuck = wait is not None and wait.helpers
    asks = words == _NO_ANSWER or (wait is not None and wait.kind == "socket")
    limit = _LIMIT if asks and not stuck else ""
    told = ", ".join(dict.fromkeys([*_own_threads(process), *details]))
    return f"{words} ({told}){limit}" if told else f"{words}{limit}"


def awaits_device(process: ProcessState | None) -> str:
    """That a rank waits for its own device, if it does: that may take as long as it computes."""
    calls = _below(process) if process is not None else []
    if not any(_DEVICE.search(f"{file}:{name}") for file, name in calls):
        return ""
    return "it waits for its own device, on which something issued before has not ended"


def _with_kernel(words: str, process: ProcessState) -> tuple[str, tuple[str, ...]]:
    """What it waits for if the kernel's word counts as well, and details.

    ``words``: what its library functions wait for, if known.
    """
    wait = process.wait
    if words == _NO_ANSWER and (who := _answerer(process)):
        words = f"{who} does not answer"
    if wait is None or not wait.kind:
        return words, wait.helpers if wait is not None else ()
    if wait.kind == "thread":
        words = words or "it waits there for a lock, a device or another thread of its own process"
        return words, wait.helpers
    if wait.kind == "timer":
        return words or (_TRIES_AGAIN if process.wakes else ""), wait.helpers
    if wait.kind == "semaphore":
        return _in_call(process) or _semaphore(wait, process), wait.helpers
    if not words or wait.kind == "lock":
        return _in_kernel(wait, process), _unread(wait)
    return words, (*_details(process, wait), *wait.helpers)


def _own_threads(process: ProcessState) -> list[str]:
    """Where the threads are that the main one may wait for."""
    if process.lacks_threads:
        return ["none of its other threads runs Python"]
    shown = process.awaited[:_SHOWN_THREADS]
    return [f"thread {thread.name} is at {where(innermost(thread.stack))}" for thread in shown]


def asks_again(stack: Stack) -> bool:
    """Whether it polls for what it waits for: its thread runs without getting anywhere."""
    return bool(stack) and bool(_ASKS_AGAIN.search(stack[0].filename.replace("\\", "/")))


def _details(process: ProcessState, wait: KernelWait) -> tuple[str, ...]:
    """What the kernel adds to what a library function is known to wait for."""
    if wait.kind in ("pipe", "full pipe"):
        return (_other_end(wait),) if wait.alone or wait.names else ()
    if wait.kind == "socket":
        return (wait.what,) if _answerer(process) else (wait.what, *wait.names)
    return (*wait.names, *_unread(wait)) if wait.kind == "child" else ()


def _unread(wait: KernelWait) -> tuple[str, ...]:
    """Why a child cannot end, if its output fills a pipe."""
    why = "whose output fills a pipe that only this process can read: read it before wait()"
    return (why,) if wait.what == UNREAD_OUTPUT else ()


def _in_library(process: ProcessState) -> str:
    """What the library functions below the user's innermost line wait for."""
    return _in_call(process) or _first_match(_BLOCKED_IN, [file for file, _ in _below(process)])


def _in_call(process: ProcessState) -> str:
    """What certain library functions below the user's innermost line wait for.

    Every import takes the lock of its module: one that runs there does not wait for it.
    """
    words = _first_match(_BLOCKED_IN_CALL, [f"{file}:{name}" for file, name in _below(process)])
    return "" if words == _IMPORTED_ELSEWHERE and process.seen_state == "running" else words


def _below(process: ProcessState) -> list[tuple[str, str]]:
    """File and name of the functions below the user's innermost line."""
    below = list(process.stack)
    own_frame = innermost(process.stack)
    if own_frame is not None and own_frame in below and not is_library(own_frame):
        below = below[: below.index(own_frame)]
    return [(frame.filename.replace("\\", "/"), frame.name) for frame in below]


def _first_match(patterns: tuple[tuple[str, str], ...], calls: list[str]) -> str:
    """The text of the first pattern that matches one of the calls."""
    for pattern, words in patterns:
        if any(re.search(pattern, call) for call in calls):
            return words
    return ""


def _answerer(process: ProcessState) -> str:
    """Who is at the other end of the socket that it waits at, if that belongs to the job."""
    wait = process.wait
    if wait is None or wait.kind != "socket":
        return ""
    if wait.alone:
        return "another thread of its own process"
    return rank_s(process.waits_for) if process.waits_for else ""


def _in_kernel(wait: KernelWait, process: ProcessState) -> str:
    """What it waits for according to the kernel."""
    names = ", ".join(wait.names)
    if wait.kind == RUNNABLE:
        return _starves(wait)
    if wait.kind == "full pipe":
        reader = "nobody else has its other end open" if wait.alone else "nobody reads it"
        reader = f"{names} does not read it" if names else reader
        return f"the pipe that it writes to is full, and {reader}"
    if wait.kind == "pipe":
        other = f" ({_other_end(wait)})" if wait.alone or wait.names else ""
        return f"nothing comes through the pipe that it reads from{other}"
    if wait.kind == "socket" and (who := _answerer(process) or names):
        return f"it waits for {wait.what}, which is {who}"
    words = _WAITS_FOR.get(wait.kind, "")
    return words.format(
        what=wait.what or _UNNAMED.get(wait.kind, "a file"),
        names=names,
        holder=holder_of(wait, process.waits_for),
    )


def _semaphore(wait: KernelWait, process: ProcessState) -> str:
    """Nothing tells who holds a semaphore, only who could."""
    words = "it waits for a lock or semaphore that processes share (multiprocessing)"
    if wait.alone:
        return (
            f"{words}, and no other process has it any more: one that ended, or this one, took it "
            "and did not release it"
        )
    if who := rank_s(process.waits_for) if process.waits_for else ", ".join(wait.names):
        return f"{words}; {who} can hold it as well"
    return words


def _starves(wait: KernelWait) -> str:
    """Why a runnable process does not run."""
    if wait.what:
        limit = f"its control group may use {wait.what} (cpu.max)"
    else:
        limit = "other processes use it all, or its control group has reached its limit"
    return f"it is ready to run but gets hardly any CPU time: {limit}"


def _other_end(wait: KernelWait) -> str:
    """Who has the other end of a pipe open."""
    if wait.alone:
        return "no other process is left at the other end of its pipe"
    return f"at the other end of its pipe: {', '.join(wait.names)}"


def holder_of(wait: KernelWait, ranks: tuple[int, ...]) -> str:
    """Who holds the awaited lock."""
    if ranks:
        return rank_s(ranks)
    names = ", ".join(wait.names)
    return f"{names}, which is no rank of this job" if names else "another process"


def frame_names(process: ProcessState | None) -> str:
    """Names of the user's three innermost functions and their files, in one string."""
    frames = user_frames(process.stack)[:3] if process is not None else ()
    return " ".join(f"{frame.name} {base(frame.filename)}" for frame in frames)
