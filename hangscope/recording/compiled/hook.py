"""The hook whose kernels are C++: the counterpart of `hangscope.recording.hook.DispatcherHook`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hangscope.recording.compiled.callbacks import Callbacks
from hangscope.recording.hook import operators
from hangscope.recording.recorder import Recorder


class CompiledHook:
    """What the kernels call; unless ``listening`` is set, they only redispatch.

    A kernel does what it has seen before by itself, and asks the recorder about the rest.

    Parameters
    ----------
    module:
        The compiled module, see `hangscope.recording.compiled.load`.
    recorder:
        Knows how everything is recorded; from now on it stores its own records through the module
        as well, which numbers all of them.
    on_error:
        Called with any exception of the recorder; may raise it again if it is the job's own.
    """

    def __init__(
        self, module: ModuleType, recorder: Recorder, on_error: Callable[[BaseException], None]
    ) -> None:
        self._recorder = recorder
        self._callbacks = Callbacks(recorder, on_error)
        self._recording: Any = module.Recording(
            memory=recorder.ring.memory,
            slots_at=recorder.ring.slot_at(1),
            slot_count=recorder.ring.slot_count,
            main_thread=threading.main_thread().ident or 0,
            callbacks=self._callbacks.of_all_operators(),
        )
        recorder.use_compiled(module, self._recording)
        self._has_operators = False

    @property
    def listening(self) -> bool:
        """Whether calls are recorded."""
        return bool(self._recording.listening)

    @listening.setter
    def listening(self, value: bool) -> None:
        self._recording.listening = value

    def install(self) -> None:
        """Have the kernels call this hook; nothing is recorded until ``listening`` is set.

        Raises
        ------
        RuntimeError
            If this torch offers no ``c10d`` operators or refuses the registration.
        """
        if not self._has_operators:
            for name, spec, _ in operators():
                self._recording.add(
                    name, spec.group, spec.reduce_op, spec.p2p, spec.blocking,
                    bool(spec.gloo_counts), self._callbacks.learner(spec),
                    self._recorder.issuer(spec), self._callbacks.failer(spec),
                )  # fmt: skip
            self._has_operators = True
        self._recording.install()

    def waiter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make the method that stands in for ``Work.wait`` and records how each wait ends."""
        method: Callable[..., Any] = self._recording.waiter(original)
        return method

    def remove(self) -> None:
        """Have the kernels only redispatch; calls in flight finish."""
        self._recording.remove()

    def close(self) -> None:
        """Let go of the recorder, once it is over."""
        self._recording.close()
