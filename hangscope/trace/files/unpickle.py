"""Reads untrusted pickles: only plain values, no imports, no calls.

Flight Recorder pickles hold only builtins, so all of them can be read although every global is
refused. The remaining danger is cost: a memo index of a few bytes can ask for gigabytes, and tuples
nested through the memo take exponential time to hash. Pickles are therefore loaded in processes
with resource limits (`hangscope.trace.loading.parallel`). If no process can be started,
`load_plain` scans the stream first and refuses what it recognises.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
import struct
from typing import Any, NoReturn

MAX_BYTES = 4 << 30
"""Larger pickles are refused; a full recorder of 100,000 entries stays far below."""


class HostilePickle(ValueError):  # noqa: N818
    """The stream asks for something that no dump needs."""


class TruncatedPickle(ValueError):  # noqa: N818
    """The stream ends before the pickle does."""


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler for which no class, function or external object exists."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise HostilePickle(f"the pickle wants to import {module}.{name}; refused")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise HostilePickle("the pickle refers to an object outside itself; refused")


def load_plain(data: bytes) -> Any:
    """Unpickle builtin values.

    Raises
    ------
    HostilePickle
        For globals, persistent ids, extension codes, memo bombs and hash bombs.
    TruncatedPickle
        If the stream ends prematurely.
    ValueError
        For any other incomplete or damaged pickle.
    """
    if len(data) > MAX_BYTES:
        raise HostilePickle(f"pickle of {len(data) >> 20} MiB; more than any dump holds")
    check_stream(data)
    return load_checked(data)


def load_checked(data: bytes) -> Any:
    """Unpickle without scanning first, for a process whose memory and time are limited anyway."""
    enabled = gc.isenabled()
    gc.disable()  # hundreds of thousands of small objects, none of them garbage
    try:
        # Without a buffer to peek into, the unpickler would call read() for every value.
        stream = io.BufferedReader(io.BytesIO(data), 1 << 17)
        return _PlainUnpickler(stream, encoding="utf-8", errors="replace").load()
    except HostilePickle:
        raise
    except RecursionError:
        raise HostilePickle("the pickle is nested too deeply") from None
    except MemoryError:
        raise HostilePickle("the pickle asks for more memory than there is") from None
    except EOFError:
        raise TruncatedPickle("truncated pickle") from None
    except Exception as error:  # pickle raises nearly every kind for a damaged stream
        reason = str(error).split("\n", 1)[0][:120] or type(error).__name__
        if "truncated" in reason:
            raise TruncatedPickle("truncated pickle") from None
        raise ValueError(f"damaged pickle ({reason})") from None
    finally:
        if enabled:
            gc.enable()


# Opcodes with arguments of fixed length. One regular expression skips runs of them, so that
# scanning the stream takes one Python step per string only.
_RUN = re.compile(
    rb"""(?:
        [\x80Khq].              # one byte: PROTO, BININT1, BINGET, BINPUT
      | M..                     # BININT2
      | [Jj]....                # BININT, LONG_BINGET
      | r..[\x00-\x0f]\x00      # LONG_BINPUT below 2**20; larger ones are checked one by one
      | G........               # BINFLOAT
      | \x95........            # FRAME
      | \x8a\x08........        # LONG1 of eight bytes: times
      | [(}e\]ual\)tsdN\x85-\x89\x94]
    )+""",
    re.VERBOSE | re.DOTALL,
)

# Tuples made only of memo references: each level doubles the cost of hashing.
_HASH_BOMB = re.compile(
    rb"(?:(?:h.|j....)+[\x85-\x87](?:\x94|q.|r....)?){24,}",
    re.DOTALL,
)

_LINE_OPS = frozenset(b"ILFSVgpP")
_LENGTHS = {
    **dict.fromkeys((0x8C, ord("U"), ord("C"), 0x8A), "<B"),
    **dict.fromkeys((ord("X"), ord("T"), ord("B"), 0x8B), "<I"),
    **dict.fromkeys((0x8D, 0x8E, 0x96), "<Q"),
}
"""Opcodes followed by a length and that many bytes: the format of the length."""
_REFUSED = {
    ord("c"): "import",
    ord("i"): "import",
    ord("o"): "call",
    ord("R"): "call",
    0x81: "call",
    0x92: "call",
    0x93: "import",
    ord("b"): "call",
    ord("P"): "outside object",
    ord("Q"): "outside object",
    0x82: "extension",
    0x83: "extension",
    0x84: "extension",
    # No pickler writes these for plain values without cycles.
    ord("0"): "trick",
    ord("1"): "trick",
    ord("2"): "trick",
    0x8F: "trick",
    0x90: "trick",
    0x91: "trick",
}


def check_stream(data: bytes) -> None:
    """Scan the opcodes and refuse what could cost more memory or time than the file's size
    warrants.

    Raises
    ------
    HostilePickle
        For opcodes that import, call or refer outside, and for memo indexes that a stream of this
        length cannot reach.
    ValueError
        If the stream ends inside an opcode or contains an unknown one.
    """
    if _HASH_BOMB.search(data):
        raise HostilePickle("the pickle nests tuples without end; refused")
    size = len(data)
    position = 0
    run = _RUN.match
    while position < size:
        match = run(data, position)
        if match:
            position = match.end()
            if position >= size:
                break
        op = data[position]
        if op == 0x2E:
            return
        position = _skip(data, position, op, size)
    raise TruncatedPickle("truncated pickle")


def _skip(data: bytes, position: int, op: int, size: int) -> int:
    """The position after the opcode at ``position``; raises for refused and unknown opcodes."""
    what = _REFUSED.get(op)
    if what is not None:
        raise HostilePickle(f"the pickle wants to {_VERBS[what]}; refused")
    at = position + 1
    if op in _LENGTHS:
        form = _LENGTHS[op]
        return _bounded(at + struct.calcsize(form) + _number(data, at, form), size)
    if op == ord("r"):  # LONG_BINPUT: the unpickler allocates an array up to this index
        _check_index(_number(data, at, "<I"), size)
        return at + 4
    if op in _LINE_OPS:
        end = data.find(b"\n", at)
        if end < 0:
            raise TruncatedPickle("truncated pickle")
        if op == ord("p"):
            digits = data[at:end].strip()
            _check_index(int(digits) if digits.isdigit() and len(digits) <= 12 else size + 1, size)
        return end + 1
    if size - position < 10:
        raise TruncatedPickle("truncated pickle")
    raise ValueError(f"damaged pickle (unknown opcode 0x{op:02x} at byte {position})")


def _check_index(index: int, size: int) -> None:
    """Refuse a memo index that a stream of ``size`` bytes cannot reach."""
    if index > size:
        raise HostilePickle("the pickle asks for more memory than it can need; refused")


_VERBS = {
    "import": "import something",
    "call": "call something",
    "outside object": "load an object from outside itself",
    "extension": "load an extension object",
    "trick": "copy or drop values, as no dump does",
}


def _number(data: bytes, at: int, form: str) -> int:
    if at + struct.calcsize(form) > len(data):
        raise TruncatedPickle("truncated pickle")
    return int(struct.unpack_from(form, data, at)[0])


def _bounded(position: int, size: int) -> int:
    if position > size:
        raise TruncatedPickle("truncated pickle")
    return position
