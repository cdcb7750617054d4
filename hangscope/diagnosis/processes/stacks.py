"""Stacks reduced to the user's own frames, and the frame where two sides diverge."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from hangscope.trace.model import Frame, Stack

_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/"
    r"|(?:^|/)lib(?:64)?/python\d"
    r"|(?:^|/)torch/(?:nn|distributed|utils|optim|autograd|_dynamo|_inductor|_ops|_tensor|fx"
    r"|multiprocessing|_functorch|_higher_order_ops|_library|_jit_internal|jit/|cuda/|amp/|export/"
    r"|_compile\.py|serialization\.py|storage\.py|functional\.py|_C/|backends/|profiler/|random\.py)"
    r"|(?:^|/)(?:torchinductor_[^/]+|\.triton)/"
    r"|^<frozen |^<__array_function__|^<eval_with_key>|^<decorator-gen"
    r"|^<attrs generated|^\?\?$|\.(?:so|cpp|cc|cu|h|pyx|pxi)$"
    r"|\.whl/|^(?:zmq|uvloop|grpc|tqdm|mpi4py|numpy|psutil|aiohttp)/"
    r"|(?:^|/)hangscope/(?:recording|autoload)"
)
_PYTHON = re.compile(
    r"(?:^|/)lib(?:64)?/python\d[\d.]*/(?!(?:site|dist)-packages/)"
    # Paths as py-spy shortens them.
    r"|^(?:threading|queue|selectors|socket|socketserver|ssl|subprocess|signal|runpy|contextlib"
    r"|functools|tempfile|shutil|pathlib|pickle|copy|gzip|tarfile|zipfile|inspect|weakref"
    r"|_weakrefset|traceback|linecache|random|typing|enum|dataclasses|glob|os|posixpath|abc)\.py$"
    r"|^(?:multiprocessing|concurrent|asyncio|http|urllib|importlib|logging|json|email|ctypes"
    r"|collections|encodings|unittest|xml|sqlite3|re)/"
)
"""Files of Python's standard library."""
_FRAMEWORK = re.compile(
    r"(?:site-packages|dist-packages|\.whl)/(?!torch/|hangscope/(?!demos/))([^/]+?)(?:\.py)?(?:/|$)"
)
"""Installed packages; of HangScope's own only the demos, which are programs."""
_STARTER = re.compile(r"(?:^|/)bin/[^/.]+$")
"""The script of an installed package's command: it only calls the package."""
_ENTRY = frozenset({"_bootstrap", "_bootstrap_inner", "run_module_as_main", "_run_code"})
_TEXT = "<string>"
"""The file name of code run from text (`exec`, ``python -c``), also of code that the standard
library generates."""
_MADE = re.compile(r"__\w+__")
"""Methods generated for dataclasses and named tuples."""


def is_library(frame: Frame) -> bool:
    """Whether the frame belongs to Python, torch, another installed package or HangScope."""
    if frame.name in _ENTRY or _in_library(frame.filename):
        return True
    if frame.filename == _TEXT:
        return _is_made(frame)
    return frame.name == "<module>" and bool(_STARTER.search(frame.filename))


def _is_made(frame: Frame) -> bool:
    """Whether code run from text is Python's own: a generated method, or the line with which
    ``multiprocessing`` and others start a process."""
    return bool(_MADE.fullmatch(frame.name)) or (frame.name, frame.line) == ("<module>", 1)


def in_framework(frame: Frame) -> bool:
    """Whether the frame belongs to an installed package other than torch and HangScope."""
    return _in_installed(frame.filename)


def inside_package(stack: Stack) -> tuple[str, Frame] | None:
    """The installed package, other than torch, called by the user's innermost line.

    Returned with its innermost frame; None if the user's own code is running, or none is on the
    stack.
    """
    for at, frame in enumerate(stack):
        if not is_library(frame):
            called = [inner for inner in stack[:at] if in_framework(inner)]
            name = _FRAMEWORK.search(called[0].filename) if called else None
            return (name[1], called[0]) if name is not None else None
    return None


@functools.lru_cache(16_384)
def in_python(filename: str) -> bool:
    """Whether a file belongs to Python's standard library."""
    return bool(_PYTHON.search(filename))


@functools.lru_cache(16_384)
def _in_installed(filename: str) -> bool:
    return bool(_FRAMEWORK.search(filename))


@functools.lru_cache(16_384)
def _in_library(filename: str) -> bool:
    """Cached: a job's stacks name the same few hundred files over and over."""
    return bool(_LIBRARY.search(filename)) or in_python(filename)


@functools.lru_cache(16_384)
def user_frames(stack: Stack) -> Stack:
    """The frames of the user's own code, innermost first.

    A program that is installed as a whole (a package's command, ``python -m package``) has none:
    then frames of installed packages, without torch and Python, count instead. Without those
    either, all frames count.
    """
    frames = tuple(frame for frame in stack if not is_library(frame))
    return frames or tuple(frame for frame in stack if in_framework(frame)) or stack


def innermost(stack: Stack) -> Frame | None:
    """The user's innermost frame."""
    frames = user_frames(stack)
    return frames[0] if frames else None


def where(frame: Frame | None) -> str:
    """``train.py:88 in backward``."""
    if frame is None:
        return ""
    return f"{base(frame.filename)}:{frame.line} in {frame.name}"


def is_over(stack: Stack) -> bool:
    """Whether the program has ended and the main thread only waits for other threads.

    Its outermost frame shows that, or the place where ``multiprocessing`` ends a child process.
    """
    return any(f.name == "_shutdown" and base(f.filename) == "threading.py" for f in stack)


def calls_exit(stack: Stack) -> bool:
    """Whether the recorder took the stack as the process called ``sys.exit`` or ``os._exit``."""
    return any(
        f.name in ("exit", "_exit") and f.filename.endswith("hangscope/recording/lifecycle.py")
        for f in stack
    )


def base(filename: str) -> str:
    """The file name in a path with either kind of separator."""
    return re.split(r"[\\/]", filename)[-1]


def diverging_frame(stack: Stack, others: Sequence[Stack]) -> int | None:
    """Index in ``stack`` of the outermost frame that the other stacks do not share.

    None if there is nothing to compare with, or every frame is shared.
    """
    rest = [other for other in others if other]
    if not stack or not rest:
        return None
    depth = 0
    while depth < len(stack):
        frame = stack[-1 - depth]
        if not all(len(other) > depth and _same(other[-1 - depth], frame) for other in rest):
            return len(stack) - 1 - depth
        depth += 1
    return None


def stands_behind(stack: Stack, other: Stack) -> bool:
    """Whether a stack is further down in the function in which it and another one diverge."""
    at, there = diverging_frame(stack, [other]), diverging_frame(other, [stack])
    if at is None or there is None:
        return False
    frame, other_frame = stack[at], other[there]
    return frame[:2] == other_frame[:2] and frame.line > other_frame.line


def _same(a: Frame, b: Frame) -> bool:
    # Directories may differ between hosts; file name and line do not.
    return a.line == b.line and a.name == b.name and base(a.filename) == base(b.filename)
