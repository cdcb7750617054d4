"""Facts about a process as builtins, by the types that the dataclasses declare.

Two ranks that do the same differ in times and process ids. Times are therefore kept apart, in the
order of the fields that end in ``_ns``, and stacks are numbers of a table: what remains is equal
for most ranks of a job and is sent once. Decoding expects untrusted input.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from hangscope.trace import clean
from hangscope.trace.facts import Frame, Stack

_MOST_ITEMS = 4096
_LONGEST = 1 << 62


class _Field:
    """How one field of a dataclass is written."""

    __slots__ = ("default", "hint", "is_time", "name")

    def __init__(self, name: str, hint: Any, default: Any) -> None:
        self.name, self.hint, self.default = name, hint, default
        self.is_time = name.endswith("_ns") and hint is int


@functools.cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    found = []
    for field in fields(kind):
        made = field.default_factory() if field.default_factory is not MISSING else MISSING
        default = field.default if field.default is not MISSING else made
        found.append(_Field(field.name, hints[field.name], default))
    return tuple(found)


def encode_facts(value: Any, number_of: Callable[[Stack], int], times: list[int]) -> dict[str, Any]:
    """A dataclass as a dictionary of what differs from its defaults.

    Parameters
    ----------
    value:
        A dataclass of `hangscope.trace.facts`.
    number_of:
        Gives the number of a stack in the common table.
    times:
        Receives the value of each ``_ns`` field.
    """
    said: dict[str, Any] = {}
    kind: Any = type(value)
    for field in _fields(kind):
        item = getattr(value, field.name)
        if field.is_time:
            times.append(item)
        elif item != field.default or field.default is MISSING:
            said[field.name] = _encode(item, field.hint, number_of, times)
    return said


def decode_facts(kind: type, said: Any, stacks: Sequence[Stack], times: Iterator[int]) -> Any:
    """The inverse of `encode_facts`.

    Raises
    ------
    ValueError
        If anything is of another type than the dataclass says, or too much.
    """
    if not isinstance(said, dict):
        raise ValueError("not facts")
    values: dict[str, Any] = {}
    known = 0
    for field in _fields(kind):
        if field.is_time:
            values[field.name] = next(times, 0)
        elif field.name in said:
            known += 1
            values[field.name] = _decode(said[field.name], field.hint, stacks, times)
        elif field.default is MISSING:
            raise ValueError(f"no {field.name}")
    if known != len(said):
        raise ValueError("unknown facts")
    return kind(**values)


def _encode(item: Any, hint: Any, number_of: Callable[[Stack], int], times: list[int]) -> Any:
    hint = _present(hint) if item is not None else hint
    if item is None:
        return None
    if hint == Stack:
        return number_of(item)
    if is_dataclass(hint):
        return encode_facts(item, number_of, times)
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return [_encode(one, inner, number_of, times) for one in item]
    if get_origin(hint) is frozenset:
        return sorted(item)
    if hint is float:
        return round(item, 2)
    return item


def _decode(said: Any, hint: Any, stacks: Sequence[Stack], times: Iterator[int]) -> Any:
    if said is None:
        if type(None) not in get_args(hint):
            raise ValueError("nothing where something must be")
        return None
    hint = _present(hint)
    if hint == Stack:
        if type(said) is not int or not 0 <= said < len(stacks):
            raise ValueError("no such stack")
        return stacks[said]
    if is_dataclass(hint) and isinstance(hint, type):
        return decode_facts(hint, said, stacks, times)
    origin = get_origin(hint)
    if origin in (tuple, frozenset):
        if not isinstance(said, list) or len(said) > _MOST_ITEMS:
            raise ValueError("not a list, or too long")
        return origin(_decode(one, get_args(hint)[0], stacks, times) for one in said)
    return _plain(said, hint)


def _plain(said: Any, hint: Any) -> Any:
    if hint is float and type(said) in (int, float) and abs(said) < _LONGEST:
        return float(said)
    if type(said) is not hint or (hint is int and abs(said) > _LONGEST):
        raise ValueError("of another type")
    return clean.prose(said) if hint is str else said


def _present(hint: Any) -> Any:
    """A type without ``None``."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(one for one in get_args(hint) if one is not type(None))
    return hint


def decode_frames(said: Any) -> Stack:
    """A stack from rows of function, file and line.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    if not isinstance(said, list) or len(said) > _MOST_ITEMS:
        raise ValueError("not a stack")
    frames = []
    for row in said:
        if not isinstance(row, list) or [type(one) for one in row] != [str, str, int]:
            raise ValueError("not a frame")
        frames.append(Frame(clean.name(row[0]), clean.name(row[1]), row[2]))
    return tuple(frames)
