"""Damages parsed documents and texts: what a reader finds is still of its format, but wrong."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

NUMBERS = (
    0, -1, 1, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63),
    10**18, 10**30, 4_000_000, 0.5, -0.0, 1e308, float("inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", "0", "-1", "default_pg", "nccl:all_reduce", "\x1b[2J\x1b]0;x\x07", "‮desrever",
    "../../../../etc/passwd", "/dev/zero", "\0", "\ud800", "99999999999999999999", "NaN", "é" * 300,
    "[" * 200, "<script>alert(1)</script>", "%s%n{0}{x!r}", "nccl:send 0->1", "scheduled",
)  # fmt: skip
TOKENS = (
    "\n", "\r\n", "\0", "\x1b[31m", "[rank0]: ", "[rank99999999]: ", "[default1]:", "│ ",
    "Traceback (most recent call last):\n", "  File \"x.py\", line 3, in f\n", "RuntimeError: x\n",
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)",
    "Watchdog caught collective operation timeout: ", "2026-08-16 10:00:00,123 ", "exitcode: -9",
    "Thread 0x1 (idle): \"MainThread\"\n", "local_rank: 3 (pid: 12)", "-" * 400, "(" * 3000,
    "9" * 400, "\u202e", "\ufeff", "[1,2]<stderr>:", "Signal 11 (SIGSEGV)", "=" * 80 + "\n",
)  # fmt: skip
Path = tuple[Any, ...]


def paths(document: Any, most: int = 20_000) -> list[Path]:
    """The places of all values inside of lists and dictionaries, each as its keys."""
    found: list[Path] = []
    todo: list[tuple[Path, Any]] = [((), document)]
    while todo and len(found) < most:
        path, value = todo.pop()
        found.append(path)
        if isinstance(value, dict):
            todo += [((*path, key), inner) for key, inner in value.items()]
        elif isinstance(value, (list, tuple)):
            todo += [((*path, index), inner) for index, inner in enumerate(value)]
    return found


def at(document: Any, path: Path) -> Any:
    """The value at a place."""
    for key in path:
        document = document[key]
    return document


def mutated(document: Any, rng: random.Random) -> Any:
    """The document with one value replaced, dropped, repeated or nested; shares the others."""
    path = rng.choice(paths(document))
    return _changed(document, path, lambda old: _another(old, document, rng))


def _changed(document: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(document)
    key = path[0]
    if isinstance(document, dict):
        return {**document, key: _changed(document[key], path[1:], change)}
    items = list(document)
    items[key] = _changed(items[key], path[1:], change)
    return tuple(items) if isinstance(document, tuple) else items


def _another(old: Any, document: Any, rng: random.Random) -> Any:
    kind = rng.randrange(9)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return rng.choice(TEXTS)
    if kind == 2:
        return rng.choice((None, True, False, [], {}, [[]], [None], {"": None}))
    if kind == 3:
        return at(document, rng.choice(paths(document)))
    if kind == 4 and isinstance(old, dict) and old:
        gone = rng.choice(list(old))
        return {key: value for key, value in old.items() if key != gone}
    if kind == 5 and isinstance(old, list):
        return old * rng.choice((0, 2, 40))
    if kind == 6:
        return _nested(old, rng.choice((1, 3, 90, 400)))
    if kind == 7 and isinstance(old, list) and old:
        return rng.sample(old, len(old))
    if isinstance(old, str):
        return damaged_text(old, rng)
    if isinstance(old, (int, float)):
        return old + rng.choice((-1, 1, 1000, -(10**9)))
    return rng.choice(NUMBERS)


def _nested(value: Any, depth: int) -> Any:
    for level in range(depth):
        value = [value] if level % 2 else {"entries": value}
    return value


def damaged_text(text: str, rng: random.Random) -> str:
    """The text with lines dropped, repeated or moved, numbers replaced, or something inserted."""
    kind = rng.randrange(6)
    lines = text.splitlines(keepends=True)
    if kind == 0 and len(lines) > 1:
        return "".join(line for line in lines if rng.random() < 0.8)
    if kind == 1 and len(lines) > 1:
        rng.shuffle(lines)
        return "".join(lines)
    if kind == 2 and lines:
        index = rng.randrange(len(lines))
        return "".join([*lines[:index], lines[index] * rng.choice((2, 300)), *lines[index + 1 :]])
    numbers = list(re.finditer(r"\d+", text))
    if kind == 3 and numbers:
        hit = rng.choice(numbers)
        return text[: hit.start()] + str(rng.choice(NUMBERS)) + text[hit.end() :]
    place = rng.randrange(len(text) + 1)
    if kind == 4:
        return text[:place]
    return text[:place] + rng.choice(TOKENS) + text[place + rng.choice((0, 0, 1, 30)) :]


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """The bytes with some flipped, dropped, repeated, cleared, or the end missing."""
    if not data:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(64)))
    at, length = rng.randrange(len(data)), rng.choice((1, 1, 2, 4, 8, 100))
    kind = rng.randrange(6)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[at + length :]
    if kind == 2:
        return data[: at + length] + data[at:]
    if kind == 3:
        return data[:at] + bytes(min(length, len(data) - at)) + data[at + length :]
    if kind == 4:
        number = rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 4096))
        return data[:at] + number.to_bytes(8, "little") + data[at + 8 :]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 30))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)
