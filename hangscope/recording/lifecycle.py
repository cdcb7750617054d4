"""How a rank ends, as seen from inside: uncaught exceptions, exits, ``os._exit``.

Every hook calls the one it replaced, with the same arguments.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.process
import multiprocessing.util
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from hangscope.recording.exceptions import describe_exception, describe_last_words
from hangscope.recording.patches import Patches
from hangscope.recording.phases import PhaseStack
from hangscope.ring.layout import LEAVING_PHASE, ExitKind
from hangscope.ring.writer import LAST_RECORD_CELL, RingWriter

_FIRST = 1000
"""Run before all other ``multiprocessing`` finalizers (queues, managers, temporary folders)."""
_BOOTSTRAP = multiprocessing.process.BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]
_SPAWN = "multiprocessing.spawn"


class Lifecycle:
    """Hooks around the end of this process."""

    def __init__(
        self,
        ring: RingWriter,
        phases: PhaseStack,
        guard: Callable[[BaseException], None],
        before_exit: Callable[[], None] = lambda: None,
        after_program: Callable[[], None] = lambda: None,
        catch_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._ring = ring
        self._phases = phases
        self._guard = guard
        self._before_exit = before_exit
        self._after_program = after_program
        self._catch_up = catch_up
        self._pid = os.getpid()
        self._patches = Patches()
        self._exit_code: int | None = None
        self._exit_called = b""
        """Stacks at the call of ``sys.exit`` with a status, before handlers and shutdown run."""
        self._failed = False
        self._is_over = False
        self._handled: bytes | None = None
        self._refused: tuple[int, bytes] | None = None
        self._finalizer: multiprocessing.util.Finalize | None = None

    def install(self) -> None:
        """Install the hooks."""
        patches = self._patches
        patches.replace(sys, "excepthook", self._excepthook(sys.excepthook))
        patches.replace(threading, "excepthook", self._threading_hook(threading.excepthook))
        patches.replace(sys, "unraisablehook", self._unraisable_hook(sys.unraisablehook))
        patches.replace(sys, "exit", self._exit(sys.exit))
        patches.replace(os, "_exit", self._hard_exit(os._exit))
        atexit.register(self._at_exit)
        if multiprocessing.process.parent_process() is not None:
            self._finalizer = multiprocessing.util.Finalize(
                None, self._on_process_end, exitpriority=_FIRST
            )
            patches.replace(traceback, "print_exc", self._print_exc(traceback.print_exc))

    def remove(self) -> None:
        """Remove the hooks that nobody else has replaced since."""
        self._patches.undo()
        atexit.unregister(self._at_exit)
        if self._finalizer is not None:
            self._finalizer.cancel()

    def note_end_of_program(self) -> None:
        """Note once that the main thread has left the program, though the process may live on.

        Before running ``atexit`` functions, Python waits for executors and then for all non-daemon
        threads.
        """
        if not self._is_over and (
            getattr(threading, "_SHUTTING_DOWN", False) or not threading.main_thread().is_alive()
        ):
            self._enter_leaving()

    def note_failure(self) -> None:
        """Keep the exception that an operation or its wait raised in the main thread.

        The job may catch it, print it somewhere and exit with a status. Then nothing else would
        tell why the process ended.
        """
        error = sys.exc_info()[1]
        if isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            described = describe_exception(type(error), error, None, threading.main_thread())
            self._refused = self._ring.cells[LAST_RECORD_CELL], described

    def _last_failure(self) -> bytes | None:
        """The exception of the last failed operation, if none was issued since."""
        if self._refused is None or self._refused[0] != self._ring.cells[LAST_RECORD_CELL]:
            return None
        return self._refused[1]

    def _enter_leaving(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._phases.enter(LEAVING_PHASE)

    # -- hooks -----------------------------------------------------------------------------

    def _excepthook(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(
            kind: type[BaseException], value: BaseException, trace: TracebackType | None
        ) -> None:
            late: Exception | None = None
            try:
                self._note_exception(kind, value, trace, threading.current_thread())
            except Exception as error:
                try:
                    self._guard(error)
                except Exception as foreign:
                    # One of the job's signal handlers raised in here (a data loader's, whose worker
                    # died). First record and report the exception that ends the process.
                    late = foreign
                    with contextlib.suppress(Exception):
                        self._note_exception(kind, value, trace, threading.current_thread())
            previous(kind, value, trace)
            if late is not None:
                raise late

        return excepthook

    def _threading_hook(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(args: Any) -> None:
            try:
                if args.exc_type is not SystemExit:
                    self._note_exception(
                        args.exc_type, args.exc_value, args.exc_traceback, args.thread
                    )
            except Exception as error:
                self._guard(error)
            previous(args)

        return excepthook

    def _unraisable_hook(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def unraisablehook(args: Any) -> None:
            try:
                if issubclass(args.exc_type, KeyboardInterrupt):
                    self._note_interrupted_end(args.exc_type, args.exc_value, args.exc_traceback)
            except Exception as error:
                self._guard(error)
            previous(args)

        return unraisablehook

    def _exit(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def exit(*args: Any) -> None:
            # Only a hint, as SystemExit may still be caught; used when the interpreter shuts down.
            if threading.current_thread() is threading.main_thread():
                status = args[0] if args else None
                before, self._exit_code = (
                    self._exit_code,
                    status & 0xFF if isinstance(status, int) else 0 if status is None else 1,
                )
                try:
                    # ``multiprocessing.spawn`` only passes on the status of its process.
                    passed_on = sys._getframe(1).f_globals.get("__name__") == _SPAWN
                    if not self._exit_code:
                        self._handled, self._exit_called = None, b""
                    elif not passed_on or before != self._exit_code:
                        self._exit_called = self._stacks()
                        words = (
                            describe_last_words(status, sys._getframe(1))
                            if isinstance(status, str)
                            else None
                        )
                        self._keep_handled(sys.exc_info()[1], self._last_failure() or words)
                except Exception as error:
                    self._guard(error)
            previous(*args)

        return exit

    def _hard_exit(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def _exit(*args: Any, **kwargs: Any) -> None:
            if os.getpid() == self._pid:
                try:
                    status = int(args[0] if args else kwargs["status"])
                    self._ring.write_sample(self._stacks())
                    if status:
                        try:
                            self._keep_handled(
                                sys.exc_info()[1], self._handled or self._last_failure()
                            )
                            self._record_handled()
                        except Exception as error:
                            self._guard(error)
                    self._ring.record_exit(ExitKind.HARD_EXIT, status & 0xFF)
                except Exception:
                    pass
            previous(*args, **kwargs)

        return _exit

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        try:
            self._before_exit()
            self._enter_leaving()
            value = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
            if not self._failed and isinstance(value, BaseException):
                # Another tool has replaced the excepthook, but the interpreter keeps the exception.
                self._note_exception(
                    type(value), value, value.__traceback__, threading.main_thread()
                )
            if self._exit_code:
                self._record_handled()
            if self._exit_called and not self._failed:
                self._ring.write_sample(self._exit_called)
            if self._failed:
                self._ring.record_exit(ExitKind.EXCEPTION, 1)
            elif self._exit_code:
                self._ring.record_exit(ExitKind.CODE, self._exit_code)
            else:
                self._ring.record_exit(ExitKind.CLEAN, 0)
                # Exit functions that were registered before ours run now. After a failure, the
                # stack on record is that of the failure, which tells more.
                self._after_program()
        except Exception as error:
            self._guard(error)

    def _on_process_end(self) -> None:
        """Finalizer that ``multiprocessing`` runs at the end of its processes."""
        try:
            error = sys.exc_info()[1]
            self._catch_up()  # a forked process ends by os._exit, so no other hook of ours runs
            if isinstance(error, SystemExit):
                if not self._exit_code and isinstance(error.code, str):  # not from sys.exit
                    trace, thread = error.__traceback__, threading.main_thread()
                    self._handled = describe_exception(type(error), error, trace, thread)
                if self._exit_code is None or self._exit_code:
                    self._record_handled()
        except Exception as error:
            self._guard(error)

    def _print_exc(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        """``multiprocessing`` prints its processes' uncaught exceptions without calling a hook."""

        def print_exc(*args: Any, **kwargs: Any) -> None:
            try:
                error = sys.exc_info()[1]
                if sys._getframe(1).f_code is _BOOTSTRAP and error is not None:
                    self._note_exception(
                        type(error), error, error.__traceback__, threading.main_thread()
                    )
            except Exception as error:
                self._guard(error)
            previous(*args, **kwargs)

        return print_exc

    def _keep_handled(self, error: BaseException | None, otherwise: bytes | None = None) -> None:
        """Keep the exception in whose handler the process exits.

        Launchers of all kinds catch, log and call ``sys.exit(1)``. Whether that really ends the
        process is known only at its end.
        """
        self._handled = otherwise
        if error is None or isinstance(error, SystemExit) or self._failed:
            return
        self._handled = describe_exception(
            type(error), error, error.__traceback__, threading.main_thread()
        )

    def _record_handled(self) -> None:
        if self._handled is not None and not self._failed:
            self._ring.record_exception(self._handled, replace=True)
            self._failed = True

    def _note_exception(
        self,
        kind: type[BaseException],
        value: BaseException | None,
        trace: TracebackType | None,
        thread: threading.Thread | None,
    ) -> None:
        if os.getpid() != self._pid:
            return
        is_main = thread is None or thread is threading.main_thread()
        self._failed = self._failed or is_main
        self._ring.record_exception(describe_exception(kind, value, trace, thread), replace=is_main)

    def _note_interrupted_end(
        self,
        kind: type[BaseException],
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Note that Ctrl-C interrupted a wait during shutdown, for a thread or an exit function.

        Python prints the exception and keeps the exit status it would have had.
        """
        self.note_end_of_program()
        if self._is_over and not self._failed and os.getpid() == self._pid:
            described = describe_exception(kind, value, trace, threading.main_thread())
            self._ring.record_exception(described, replace=True)

    def _stacks(self) -> bytes:
        from hangscope.recording.stack_samples import sample_threads

        return sample_threads()
