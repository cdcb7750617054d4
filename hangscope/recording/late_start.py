"""Starts recording where a process becomes a rank: when it calls ``init_process_group``."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from hangscope.recording.init_arguments import declaration
from hangscope.recording.patches import Patches
from hangscope.recording.warn_once import warn_once


class Start(Protocol):
    """Begins recording in this process."""

    def __call__(self, *, rank: int = -1, world_size: int = -1) -> bool: ...


def start_on_init(start: Start) -> None:
    """Start recording when this process calls ``init_process_group``, if it ever does.

    Parameters
    ----------
    start:
        Begins recording: `hangscope.recording.api.start`.
    """
    import torch.distributed.distributed_c10d  # noqa: F401

    patches = Patches()

    def wrap(original: Any) -> Any:
        has_started = False

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            nonlocal has_started
            if has_started:  # this wrapper lies below another one and could not be removed
                return original(*args, **kwargs)
            has_started = True
            return _start_and_call(start, patches.undo, args, kwargs)

        return init_process_group

    patches.replace_function("init_process_group", wrap)


def start_in_child(
    wrap: Callable[[Any], Any], pid: int, leave: Callable[[], None], start: Start
) -> Callable[[Any], Any]:
    """Extend ``wrap``: a forked child of process ``pid`` that becomes a rank records by itself.

    A parent whose children take part in the job is a launcher. ``leave`` removes the parent's
    recording from the child.
    """

    def wrap_both(original: Any) -> Any:
        wrapped = wrap(original)

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            import torch.distributed as dist

            if os.getpid() == pid or dist.is_initialized():
                return wrapped(*args, **kwargs)
            return _start_and_call(start, leave, args, kwargs)

        return init_process_group

    return wrap_both


def _start_and_call(
    start: Start, leave: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Remove the wrapper around ``init_process_group``, start recording, and call it."""
    try:
        leave()
        rank, world_size = declaration(args, kwargs, os.environ).place or (-1, -1)
        start(rank=rank, world_size=world_size)
    except Exception as error:
        warn_once(f"recording is off: {type(error).__name__}: {error}")
    # The recording has installed its own wrapper by now; if it failed, this is the original.
    home = sys.modules["torch.distributed.distributed_c10d"]
    return home.init_process_group(*args, **kwargs)
