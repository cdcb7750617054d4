"""Parses thread stacks in text form: the recorder's samples and faulthandler's dumps."""

from __future__ import annotations

import functools
import re

from hangscope.trace import clean
from hangscope.trace.model import Frame, Stack, ThreadStack

_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
_THREAD = re.compile(r"^(?:Current thread|Thread) (?P<ident>0x[0-9a-f]+)[^\n]*:$")
_DAEMON = {"main": False, "daemon": True, "plain": False}
"""Whether a sampled thread is a daemon, by kind; older rings call all but the main one
``other``."""


def parse_sample(text: str, at_ns: int) -> tuple[ThreadStack, ...]:
    """Parse the stacks in a ring's sample area (see ``hangscope.recording.stack_samples``)."""
    return tuple(
        ThreadStack(name, kind == "main", stack, at_ns, "sample", native_id, _DAEMON.get(kind))
        for name, kind, stack, native_id in _sampled(text)
    )


@functools.lru_cache(4096)
def _sampled(text: str) -> tuple[tuple[str, str, Stack, int], ...]:
    """(thread name, kind, stack, native id); cached, as a blocked rank's text does not change."""
    threads: list[tuple[str, str, Stack, int]] = []
    for part in ("\n" + text).split("\nT ")[1:]:
        head, _, body = part.partition("\n")
        kind, number, name = ([*head.split(" ", 2), "", ""])[:3]
        stack = _frames(body)
        if stack:
            native_id = _line(number)
            # Rings of older versions hold the interpreter's thread id there, an address.
            known = native_id if native_id < 1 << 32 else 0
            threads.append((clean.name(name), kind, stack, known))
    return tuple(threads)


@functools.lru_cache(8192)
def _frames(text: str) -> Stack:
    """The frames of one thread; cached, as ranks at the same place have the same text."""
    frames: list[Frame] = []
    for line in text.split("\n"):
        if line.startswith("F "):
            number, _, rest = line[2:].partition("\x00")
            function, _, filename = rest.partition("\x00")
            frames.append(Frame(clean.name(function), clean.name(filename), _line(number)))
    return tuple(frames)


def _line(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def parse_faulthandler(text: str, at_ns: int, main_name: str = "") -> tuple[ThreadStack, ...]:
    """Parse the newest dump in a faulthandler file; its main thread comes last.

    A file may hold several dumps in succession; the newest begins where the threads repeat for the
    last time.
    """
    blocks: list[tuple[str, list[Frame]]] = []
    for line in text.split("\n"):
        thread = _THREAD.match(line)
        if thread:
            blocks.append((thread["ident"], []))
            continue
        frame = _FRAME.match(line)
        if frame and blocks:
            blocks[-1][1].append(
                Frame(clean.name(frame["name"]), clean.name(frame["file"]), _line(frame["line"]))
            )
    newest: dict[str, Stack] = {}
    for ident, frames in blocks:
        newest.pop(ident, None)
        if frames:
            newest[ident] = tuple(frames)
    # faulthandler lists thread states newest first; the main thread's is the oldest.
    idents = list(newest)
    return tuple(
        ThreadStack(
            main_name or "MainThread" if ident == idents[-1] else ident,
            ident == idents[-1],
            newest[ident],
            at_ns,
            "signal",
        )
        for ident in idents
    )
