"""``Work.wait``: it tells what polling cannot, that an operation is over, or has failed."""

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
    """Note how each wait ends; ``failed`` is called where one raises, with that being handled."""
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
                    # In a forked child this has failed, too.
                    if result is not False and recording():
                        waited(work, succeeded)
                except KeyboardInterrupt:
                    # Python could not raise it before. Of a send or receive that has failed nothing
                    # but this wait tells that.
                    if result is not False and recording():
                        waited(work, succeeded)
                    raise
                if not succeeded and recording():
                    failed()
            except Exception as error:
                guard(error)

    patches.replace(dist.Work, "wait", wait)
