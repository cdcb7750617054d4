"""Text in fragments whose readers trust their files: a journal can be forged as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from hangscope.trace import clean
from hangscope.trace.model import Fragment, Frame, Group, Signature, Stack

_PROSE = ("message", "text", "detail")


def clean_fragment(fragment: Fragment) -> Fragment:
    """The fragment with every text made printable."""
    return replace(
        fragment,
        facts=_cleaned(fragment.facts),
        groups=tuple([g if _is_clean_group(g) else _cleaned(g) for g in fragment.groups]),
        signatures=tuple([_signature(s) for s in fragment.signatures]),
        stacks=_stacks(fragment.stacks),
        claims=tuple([_cleaned(claim) for claim in fragment.claims]),
        warnings=tuple([clean.name(text) for text in fragment.warnings]),
    )


def _is_clean_group(group: Group) -> bool:
    name = clean.name
    return (
        name(group.name) == group.name
        and name(group.desc) == group.desc
        and name(group.backend) == group.backend
    )


@lru_cache(maxsize=65536)
def _signature(signature: Signature) -> Signature:
    cleaned: Signature = _cleaned(signature)
    return cleaned


def _stacks(stacks: Sequence[Stack]) -> Sequence[Stack]:
    name = clean.name
    # Frames are shared among the stacks of a ring: each is looked at once.
    frames = {id(frame): frame for stack in stacks for frame in stack}.values()
    if all(name(f.name) == f.name and name(f.filename) == f.filename for f in frames):
        return stacks
    return tuple(
        tuple(Frame(name(f.name), name(f.filename), f.line) for f in stack) for stack in stacks
    )


def _cleaned(value: Any) -> Any:
    """A dataclass with its texts cleaned, however deep they lie."""
    changes = {}
    for field in fields(value):
        old = getattr(value, field.name)
        if old is None or type(old) in (int, float, bool):
            continue
        new = _value(old, field.name)
        if new is not old and new != old:
            changes[field.name] = new
    return replace(value, **changes) if changes else value


def _value(value: Any, name: str) -> Any:
    if type(value) is str:
        return clean.prose(value) if name in _PROSE else clean.name(value)
    if isinstance(value, Frame):
        return Frame(clean.name(value.name), clean.name(value.filename), value.line)
    if type(value) is tuple:
        if value and type(value[0]) is int:  # ranks and sizes
            return value
        return tuple(_value(item, name) for item in value)
    if isinstance(value, dict):
        return {_value(k, name): _value(v, name) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _cleaned(value)
    return value
