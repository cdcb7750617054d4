"""Every function of the diagnosis as an item that can be switched off.

A function that is switched off returns what it returns when it has nothing to say, which its
annotation tells: what it was given if it returns the same type (a pass over the causes), else None,
False, an empty text or an empty collection. One that returns something else (a graph, a table) is
part of the machinery and no item.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FunctionType

import hangscope.diagnosis

_EMPTY: dict[str, Callable[[], object]] = {
    "list": list, "tuple": tuple, "dict": dict, "set": set, "frozenset": frozenset,
    "Sequence": tuple, "Iterable": tuple, "Collection": tuple, "Iterator": tuple,
    "Mapping": dict, "str": str, "bool": bool, "int": int, "float": float,
}  # fmt: skip
_SELF_TYPES = ("Trace", "Cause", "Finding")


@dataclass(frozen=True)
class Item:
    """One function; ``name`` is ``module:function`` below `hangscope.diagnosis`."""

    name: str
    function: FunctionType
    neutral: Callable[..., object]
    """What it returns while it is switched off."""

    @property
    def module(self) -> str:
        return self.name.partition(":")[0]


def items() -> list[Item]:
    """All items, in order of their names."""
    found = {}
    package = hangscope.diagnosis
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(info.name)
        short = info.name.removeprefix(f"{package.__name__}.")
        for name, function in _functions(module):
            neutral = _neutral(function)
            if neutral is not None:
                found[f"{short}:{name}"] = Item(f"{short}:{name}", function, neutral)
    return [found[name] for name in sorted(found)]


def _functions(module: object) -> Iterator[tuple[str, FunctionType]]:
    own = vars(module)
    for name, value in own.items():
        if getattr(value, "__module__", None) != own["__name__"]:
            continue
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            for attribute, method in vars(value).items():
                function = _of_attribute(method)
                if function is not None and not attribute.startswith("__"):
                    yield f"{name}.{attribute}", function


def _of_attribute(value: object) -> FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    return value if inspect.isfunction(value) and value.__qualname__.count(".") == 1 else None


def _neutral(function: FunctionType) -> Callable[..., object] | None:
    """A function of the same arguments; None if there is no neutral answer of its type."""
    returned = function.__annotations__.get("return")
    if returned in (None, "None") or function.__code__.co_freevars:
        return None
    parameters = {name: note for name, note in function.__annotations__.items() if name != "return"}
    names = list(inspect.signature(function).parameters)
    return _of_type(str(returned), parameters, names)


def _of_type(
    returned: str, parameters: dict[str, str], names: list[str]
) -> Callable[..., object] | None:
    if returned.endswith("| None"):
        return lambda *a, **k: None
    if any(kind in returned for kind in _SELF_TYPES) and not returned.startswith("tuple["):
        for place, name in enumerate(names):
            if parameters.get(name) == returned:
                return lambda *a, _n=name, _p=place, **k: k[_n] if _n in k else a[_p]
    if returned.startswith("tuple[") and not returned.endswith(", ...]"):
        parts = [_of_type(part, parameters, names) for part in _parts(returned[6:-1])]
        if all(parts):
            return lambda *a, **k: tuple(part(*a, **k) for part in parts)  # type: ignore[misc]
        return None
    make = _EMPTY.get(re.split(r"\W", returned)[0])
    return None if make is None else lambda *a, **k: make()


def _parts(inside: str) -> list[str]:
    parts, depth = [""], 0
    for letter in inside:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


@contextmanager
def switched_off(chosen: list[Item]) -> Iterator[None]:
    """Replace the code of these functions, wherever they are referred to."""
    with _replaced(chosen, _off.__code__, lambda _, item: {"__neutral": item.neutral}):
        yield


@contextmanager
def watched(chosen: list[Item], heard: set[int]) -> Iterator[None]:
    """Put the index of each of these functions that has anything to say into ``heard``."""

    def told(index: int, item: Item) -> dict[str, object]:
        old = item.function
        run = FunctionType(old.__code__, old.__globals__, old.__name__, old.__defaults__)
        run.__kwdefaults__ = old.__kwdefaults__
        return {
            "__run": run,
            "__item": (index, item.neutral),
            "__heard": heard,
            "__says_nothing": _says_nothing,
        }

    with _replaced(chosen, _watch.__code__, told):
        yield


@contextmanager
def _replaced(
    chosen: list[Item],
    by: CodeType,
    told: Callable[[int, Item], dict[str, object]],
) -> Iterator[None]:
    """The functions with the code of another one, which gets what is ``told`` of each."""
    before = [(i.function, i.function.__code__, i.function.__defaults__, i.function.__kwdefaults__)
              for i in chosen]  # fmt: skip
    try:
        for index, item in enumerate(chosen):
            keywords = told(index, item)
            item.function.__defaults__ = None
            item.function.__kwdefaults__ = keywords
            item.function.__code__ = by
        yield
    finally:
        for function, code, defaults, keyword_defaults in reversed(before):
            function.__code__ = code
            function.__defaults__ = defaults
            function.__kwdefaults__ = keyword_defaults


def _off(*args, __neutral, **kwargs):  # type: ignore[no-untyped-def]
    return __neutral(*args, **kwargs)


def _watch(*args, __run, __item, __heard, __says_nothing, **kwargs):  # type: ignore[no-untyped-def]
    value = __run(*args, **kwargs)
    index, neutral = __item
    if index not in __heard and not __says_nothing(neutral(*args, **kwargs), value):
        __heard.add(index)
    return value


def _says_nothing(neutral: object, value: object) -> bool:
    """Whether a function returned no more than its neutral answer."""
    if neutral is value:
        return True
    try:
        if isinstance(value, (list, tuple, set, frozenset, dict)) and not len(value):
            return not neutral
        return type(neutral) is type(value) and bool(neutral == value)
    except Exception:
        return False
