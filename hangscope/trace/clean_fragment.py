"""Text in fragments whose readers trust their files: rings and journals can be forged as well."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from hangscope.trace import clean
from hangscope.trace.model import Fragment, Frame, Stack

_PROSE = ("message", "text", "detail")


def clean_fragment(fragment: Fragment) -> Fragment:
    """The fragment with every text made printable."""
    return replace(
        fragment,
        facts=_cleaned(fragment.facts),
        groups=tuple(_cleaned(group) for group in fragment.groups),
        signatures=tuple(_cleaned(signature) for signature in fragment.signatures),
        stacks=tuple(_stack(stack) for stack in fragment.stacks),
        claims=tuple(_cleaned(claim) for claim in fragment.claims),
        warnings=tuple(clean.name(text) for text in fragment.warnings),
    )


def _stack(stack: Stack) -> Stack:
    name = clean.name
    for frame in stack:
        if name(frame.name) is not frame.name or name(frame.filename) is not frame.filename:
            return tuple(Frame(name(f.name), name(f.filename), f.line) for f in stack)
    return stack


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
