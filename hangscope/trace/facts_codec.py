"""Facts about a process as builtins, by the types that the dataclasses declare, and back.

Journals and dumps hold them as they are, and are read field by field: anything may be missing,
wrong or made up, and what is malformed is left out. Digests travel between nodes: two ranks that do
the same differ in times and process ids. Times are therefore kept apart, in the order of the fields
that end in ``_ns``, and stacks are numbers of a table: what remains is equal for most ranks of a
job and is sent once. What does not fit makes all of a digest void.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from hangscope.trace import clean
from hangscope.trace.facts import ExitFacts, Frame, Phase, Stack, ThreadStack

_MOST_ITEMS = 256
"""Of a list that is read leniently; the rest is left out."""
_MOST_SENT = 4096
"""Of a list in a digest."""
_MOST_RANKS = 100_000
_LONGEST = 1 << 62
_PROSE = frozenset({"message", "detail", "rendezvous"})
"""Fields that may hold more than a name."""
_NAMES = {
    (ThreadStack, "is_main"): "main",
    (ThreadStack, "sampled_ns"): "at_ns",
    (ThreadStack, "stack"): "frames",
    (ExitFacts, "not_signalled"): "untold",
    (ExitFacts, "signalled"): "told",
}
"""Fields that are written under another name than their own."""
_Kind = TypeVar("_Kind")


class MalformedError(ValueError):
    """A value of another type than the field, or too much."""


class _Field(NamedTuple):
    """How one field of a dataclass is written."""

    name: str
    key: str
    hint: Any
    default: Any
    is_time: bool


@functools.cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    found = []
    for field in fields(kind):
        made = field.default_factory() if field.default_factory is not MISSING else MISSING
        default = field.default if field.default is not MISSING else made
        hint = hints[field.name]
        key = _NAMES.get((kind, field.name), field.name)
        is_time = field.name.endswith("_ns") and hint is int
        found.append(_Field(field.name, key, hint, default, is_time))
    return tuple(found)


class Encoder:
    """Writes dataclasses of `hangscope.trace.facts`.

    Parameters
    ----------
    stack:
        What a stack becomes; by default a list of ``[function, file, line]``, innermost first.
    times:
        Receives the value of each ``_ns`` field; by default they are written like the others.
    """

    def __init__(
        self,
        stack: Callable[[Stack], Any] | None = None,
        times: list[int] | None = None,
    ) -> None:
        self._stack = stack or _rows
        self._times = times

    def facts(self, value: Any, only: Collection[str] | None = None) -> dict[str, Any]:
        """A dictionary of what differs from the defaults; ``only`` of these fields."""
        said: dict[str, Any] = {}
        kind: Any = type(value)
        for field in _fields(kind):
            if only is not None and field.name not in only:
                continue
            item = getattr(value, field.name)
            if field.is_time and self._times is not None:
                self._times.append(item)
            elif item != field.default or field.default is MISSING:
                said[field.key] = self._value(item, field.hint)
        return said

    def _value(self, item: Any, hint: Any) -> Any:
        if item is None:
            return None
        hint = _present(hint)
        if hint == Stack:
            return self._stack(item)
        if is_dataclass(hint):
            return self.facts(item)
        if get_origin(hint) is tuple:
            inner = get_args(hint)[0]
            return [self._value(one, inner) for one in item]
        if get_origin(hint) is frozenset:
            return sorted(item)
        return round(item, 2) if hint is float else item


class Decoder:
    """Reads what an `Encoder` has written; expects untrusted input.

    Parameters
    ----------
    stack:
        The inverse of the encoder's.
    times:
        Gives the times that were kept apart.
    strict:
        Anything malformed, missing or unknown raises `MalformedError`; else it is left out.
    """

    def __init__(
        self,
        stack: Callable[[Any], Stack] | None = None,
        times: Iterator[int] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self._stack = stack or self.frames
        self._times = times
        self._is_strict = strict

    def facts(self, kind: type[_Kind], said: Any) -> _Kind:
        """A dataclass.

        Raises
        ------
        MalformedError
            If it is none, or a field without a default is missing.
        """
        values = self.values(kind, said)
        try:
            return kind(**values)
        except TypeError:
            raise MalformedError("a field is missing") from None

    def values(self, kind: Any, said: Any, only: Collection[str] | None = None) -> dict[str, Any]:
        """The fields of a dataclass that are stated; ``only`` of these."""
        if kind is Phase and isinstance(
            said, (list, tuple)
        ):  # as exports of older versions hold it
            said = dict(zip(("name", "since_ns", "detail"), said, strict=False))
        if not isinstance(said, Mapping):
            raise MalformedError("not facts")
        values: dict[str, Any] = {}
        known = 0
        for field in _fields(kind):
            if only is not None and field.name not in only:
                continue
            if field.is_time and self._times is not None:
                values[field.name] = next(self._times, 0)
            elif field.key in said:
                known += 1
                try:
                    values[field.name] = self._value(said[field.key], field.hint, field.name)
                except MalformedError:
                    if self._is_strict:
                        raise
        if self._is_strict and known != len(said):
            raise MalformedError("unknown facts")
        return values

    def listed(self, kind: type[_Kind], said: Any) -> tuple[_Kind, ...]:
        """Dataclasses in a list."""
        found: tuple[_Kind, ...] = self._items(said, kind, "")
        return found

    def frames(self, said: Any) -> Stack:
        """A stack from rows of function, file and line."""
        return self._items(said, Frame, "")

    def _items(self, said: Any, hint: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(said, (list, tuple)) or (self._is_strict and len(said) > _MOST_SENT):
            if self._is_strict:
                raise MalformedError("not a list, or too long")
            return ()
        found = []
        for one in said if self._is_strict else said[:_MOST_ITEMS]:
            try:
                found.append(self._value(one, hint, name))
            except MalformedError:
                if self._is_strict:
                    raise
        return tuple(found)

    def _value(self, said: Any, hint: Any, name: str) -> Any:
        if said is None:
            if type(None) not in get_args(hint):
                raise MalformedError("nothing where something must be")
            return None
        hint = _present(hint)
        if hint is Frame:
            return _frame(said)
        if hint == Stack:
            return self._stack(said)
        if is_dataclass(hint):
            return self.facts(hint, said)  # type: ignore[arg-type]
        if get_origin(hint) is frozenset:
            return _ranks(said)
        if get_origin(hint) is tuple:
            return self._items(said, get_args(hint)[0], name)
        return _plain(said, hint, name)


def _rows(stack: Stack) -> list[list[Any]]:
    return [list(frame) for frame in stack]


Make = Callable[[Iterator[int]], Any]
"""Makes a value from the next times."""


class Template:
    """Facts that are equal for many ranks but for their times, decoded once for all of them."""

    def __init__(self, facts: Any) -> None:
        kind: Any = type(facts)
        self._kind = kind
        self._same: dict[str, Any] = {}
        self._timed: dict[str, Make] = {}
        for field in _fields(kind):
            item = getattr(facts, field.name)
            make = _next_time if field.is_time else _make(item)
            if make is None:
                self._same[field.name] = item
            else:
                self._timed[field.name] = make

    @property
    def has_times(self) -> bool:
        """Whether there are times in it."""
        return bool(self._timed)

    def values(self, times: Iterator[int]) -> dict[str, Any]:
        """The fields of the dataclass, with these times in the order in which they were written."""
        return {**self._same, **{name: make(times) for name, make in self._timed.items()}}

    def make(self, times: Iterator[int]) -> Any:
        """The dataclass."""
        return self._kind(**self.values(times))


def _make(item: Any) -> Make | None:
    """What makes a value in which there are times; None if there are none."""
    if is_dataclass(item):
        template = Template(item)
        return template.make if template.has_times else None
    if not isinstance(item, tuple):
        return None
    makers = [_make(one) for one in item]
    if not any(makers):
        return None
    pairs = list(zip(item, makers, strict=True))
    return lambda times: tuple(one if make is None else make(times) for one, make in pairs)


def _next_time(times: Iterator[int]) -> int:
    return next(times, 0)


def _plain(said: Any, hint: Any, name: str) -> Any:
    if hint is float:
        found = clean.as_quantity(said)
        if found is None:
            raise MalformedError("no quantity")
        return found
    if type(said) is not hint or (hint is int and abs(said) > _LONGEST):
        raise MalformedError("of another type")
    if hint is int and name.endswith("_ns") and said < 0:
        raise MalformedError("no time")
    if hint is str:
        return clean.prose(said) if name in _PROSE else clean.name(said)
    return said


def _frame(said: Any) -> Frame:
    if not isinstance(said, (list, tuple)) or [*map(type, said)] != [str, str, int]:
        raise MalformedError("not a frame")
    return Frame(clean.name(said[0]), clean.name(said[1]), max(said[2], 0))


def _ranks(said: Any) -> frozenset[int]:
    if not isinstance(said, list) or len(said) > _MOST_RANKS:
        raise MalformedError("no ranks")
    if any(clean.as_rank(one) is None for one in said):
        raise MalformedError("no ranks")
    return frozenset(said)


def _present(hint: Any) -> Any:
    """A type without ``None``."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(one for one in get_args(hint) if one is not type(None))
    return hint
