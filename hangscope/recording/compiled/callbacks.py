"""What the compiled hook asks Python: whatever is new, or rare.

How an operation is recorded is thus written down once, in `Recorder` and what it uses. The C++ side
of these functions is ``Callbacks`` and ``Operator`` in ``session.hpp`` and ``call.hpp``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hangscope.recording.groups import GroupState
from hangscope.recording.operations import OpSpec, blocking_flag_reader
from hangscope.recording.plans import Plan
from hangscope.recording.recorder import Recorder, Token

Learnt = tuple[GroupState, Plan | None]
"""The plan is None if operations of the group, or this one, are not recorded."""


class Callbacks:
    """The functions for one recording.

    Parameters
    ----------
    recorder:
        Knows how everything is recorded.
    on_error:
        Called with any exception of the recorder; may raise it again if it is the job's own.
    """

    def __init__(self, recorder: Recorder, on_error: Callable[[BaseException], None]) -> None:
        self._recorder = recorder
        self._on_error = on_error

    def of_all_operators(self) -> dict[str, Any]:
        """What every kernel and every wait may call, and the collections that they look at."""
        import torch

        stacks, completions = self._recorder.stacks, self._recorder.completions
        return {
            "stack_of": stacks and (lambda frame, own: stacks.current(frame, own_thread=own)),
            "unmarked": stacks and stacks.unmarked,
            "manner": blocking_flag_reader(),
            "note_capture": self._recorder.note_capture,
            "is_capturing": getattr(torch._C, "_cuda_isCurrentStreamCapturing", bool),
            "drain": completions.drain,
            "append_boxed": completions.boxed.append,
            "waiting": completions.waiting,
            "waited": self._waited,
            "boxed": completions.boxed,
            "watched": completions.watched,
            "unwaited": completions.unwaited,
            "on_error": self._on_error,
        }

    def learner(self, spec: OpSpec) -> Callable[[tuple[Any, ...], int], Learnt | None]:
        """Make the function that finds out an operation's group and plan.

        It takes the operator's arguments and the number of its reduce op (-1: none), and returns
        None if the operation is not to be recorded.
        """
        import torch

        recorder = self._recorder
        function_mode = getattr(torch._C, "_is_torch_function_mode_enabled", bool)

        def learn(args: tuple[Any, ...], reduce_op: int) -> Learnt | None:
            if function_mode():  # as in `Recorder.beginner`
                with torch._C.DisableTorchFunction():
                    return look_up(args, reduce_op)
            return look_up(args, reduce_op)

        def look_up(args: tuple[Any, ...], reduce_op: int) -> Learnt | None:
            process_group = recorder.group_of(spec, args)
            if process_group is None:
                return None
            state = recorder.groups.register(process_group)
            if not state.recorded:
                return state, None
            return state, recorder.planner.plan(spec, args, state, process_group, reduce_op)

        return learn

    def failer(self, spec: OpSpec) -> Callable[[Token, BaseException], None]:
        """Make the function for an operator that has raised."""

        def failed(token: Token, error: BaseException) -> None:
            self._recorder.take_back(spec, token)
            self._failed_with(error)

        return failed

    def _waited(self, work: Any, error: BaseException | None) -> None:
        """The job has waited for a Work, or the wait has raised an exception."""
        succeeded = error is None
        waited = self._recorder.completions.waited
        try:
            waited(work, succeeded)
        except KeyboardInterrupt:  # as in `stand_in_for_wait`
            waited(work, succeeded)
            raise
        if error is not None:
            self._failed_with(error)

    def _failed_with(self, error: BaseException) -> None:
        trace = error.__traceback__
        try:
            raise error  # so that it is being handled, as in a kernel of Python's
        except BaseException:
            self._recorder.failed()
        finally:
            error.__traceback__ = trace
