"""Observes ``Work.wait``, which shows completion and failure where polling cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hangscope.recording.completion import Completions
from hangscope.recording.phases import Patches


def watch_waits(  # noqa: C901 one closure: it runs in every wait of the job
    patches: Patches,
    completions: Completions,
    guard: Callable[[BaseException], None],
    *,
    recording: Callable[[], bool],
    failed: Callable[[], None],
) -> None:
    """Record how each wait ends; ``failed`` is called while an exception it raised is handled."""
    import torch.distributed as dist

    original = getattr(dist.Work, "wait", None)
    if original is None:
        return
    waiting, waited, unwaited = completions.waiting, completions.waited, completions.unwaited

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        result = None
        succeeded = False
        if unwaited:
            try:
                if recording():
                    waiting(work)
            except Exception as error:
                guard(error)
        try:
            result = original(work, *args, **kwargs)
            succeeded = True
            return result
        finally:
            try:
                try:
                    # Also skips a forked child, whose copy of the recording has failed.
                    if result is not False and recording():
                        waited(work, succeeded)
                except KeyboardInterrupt:
                    # It interrupted our own code. Try again: nothing but this wait tells that a
                    # send or receive has failed.
                    if result is not False and recording():
                        waited(work, succeeded)
                    raise
                if not succeeded and recording():
                    failed()
            except Exception as error:
                guard(error)

    patches.replace(dist.Work, "wait", wait)
