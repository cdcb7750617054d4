"""Observes ``Work.wait``, which shows completion and failure where polling cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hangscope.recording.completion import Completions
from hangscope.recording.patches import Patches

Wait = Callable[..., Any]


def watch_waits(patches: Patches, stand_in: Callable[[Wait], Wait]) -> None:
    """Replace ``Work.wait`` with what ``stand_in`` makes of it."""
    import torch.distributed as dist

    original = getattr(dist.Work, "wait", None)
    if original is not None:
        patches.replace(dist.Work, "wait", stand_in(original))


def stand_in_for_wait(  # noqa: C901 one closure: it runs in every wait of the job
    completions: Completions,
    guard: Callable[[BaseException], None],
    *,
    recording: Callable[[], bool],
    failed: Callable[[], None],
) -> Callable[[Wait], Wait]:
    """Make the function that makes the stand-in, which records how each wait ends.

    ``failed`` is called while an exception that the wait has raised is handled. The compiled hook
    has a stand-in of its own (``waits.hpp``).
    """
    waiting, waited, unwaited = completions.waiting, completions.waited, completions.unwaited

    def stand_in(original: Wait) -> Wait:
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

        return wait

    return stand_in
