"""One recording of one process: everything that is switched on and off together.

Any failure of the recorder becomes one warning and disables it; the job goes on.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from hangscope.recording.compiled.hook import CompiledHook
from hangscope.recording.compiled.load import compiled
from hangscope.recording.device_name import DeviceName
from hangscope.recording.hook import DispatcherHook, Hook, Listener
from hangscope.recording.init_arguments import declaration
from hangscope.recording.late_start import Start, start_in_child
from hangscope.recording.lifecycle import Lifecycle
from hangscope.recording.manual import ManualRecorder
from hangscope.recording.native_status import NativeStatus
from hangscope.recording.patches import Patches
from hangscope.recording.phases import WRAPPED, PhaseStack, wrap_phase
from hangscope.recording.python_groups import PythonGroups
from hangscope.recording.recorder import Recorder
from hangscope.recording.settings import Settings
from hangscope.recording.store_waits import watch_stores
from hangscope.recording.user_exceptions import is_user_exception
from hangscope.recording.warn_once import warn_once
from hangscope.recording.watcher import Watcher
from hangscope.recording.work_waits import Wait, stand_in_for_wait, watch_waits
from hangscope.ring.layout import Unobservable
from hangscope.ring.run_directory import opened
from hangscope.ring.stack_requests import STACK_SIGNALS, stacks_file
from hangscope.ring.writer import RingWriter

PAUSE_TIMEOUT_S = 0.5


class Session:
    """A running recording.

    Parameters
    ----------
    ring:
        The open ring of this rank.
    settings:
        What the user asked for.
    start:
        Begins a recording of its own in a forked child that becomes a rank.
    """

    def __init__(self, ring: RingWriter, settings: Settings, start: Start) -> None:
        self.ring = ring
        self.settings = settings
        self._start = start
        self.pid = os.getpid()
        self.phases = PhaseStack(ring)
        self.lifecycle = Lifecycle(
            ring,
            self.phases,
            self.guard,
            before_exit=self._before_exit,
            after_program=self._after_program,
            catch_up=self._catch_up,
        )
        self.recorder = Recorder(
            ring,
            warn_once,
            stacks=settings.stacks,
            record_fake=settings.record_fake_groups,
            failed=self.lifecycle.note_failure,
        )
        self.hook = self._hook()
        self.watcher = Watcher(
            self.recorder,
            self.guard,
            stacks=settings.stacks,
            native=NativeStatus.available(),
        )
        self.watcher.on_beats.append(self.lifecycle.note_end_of_program)
        self.watcher.on_beats.append(DeviceName(ring, self.recorder.planner.device_index).note)
        self._patches = Patches()
        self._fault_file: TextIO | None = None
        self._fault_signal = 0
        self.failed = False
        self._manual: ManualRecorder | None = None

    def start(self) -> None:
        """Switch everything on, or nothing if a part fails.

        Raises
        ------
        Exception
            Whatever the failing part raised.
        """
        try:
            self.hook.install()
            self.lifecycle.install()
            self._wrap_functions()
            self._watch_coalescing()
            watch_waits(self._patches, self._stand_in_for_wait())
            self._watch_python_groups()
            watch_stores(self._patches, self._phase_stack, self.guard)
            self._register_fault_handler()
            self._note_unobservable()
            self._note_existing_world()
            self.hook.listening = True
            self.watcher.start()
            _register_fork_hook(self)
        except Exception:
            self.failed = True
            self.stop()
            raise

    def stop(self) -> None:
        """Switch everything off, even if a part fails; the ring stays readable."""
        for off in (
            self.hook.remove,
            self.watcher.stop,
            self._catch_up,
            self.lifecycle.remove,
            self._patches.undo,
            self._unregister_fault_handler,
            self.hook.close,
        ):
            try:
                off()
            except Exception as error:
                self.guard(error)

    def _hook(self) -> Hook:
        """The compiled hook if there is one, else Python's."""
        module = compiled()
        if module is None or self.settings.check_reduce:
            return DispatcherHook(self._listener(), self.guard)
        return CompiledHook(module, self.recorder, self.guard)

    def _stand_in_for_wait(self) -> Callable[[Wait], Wait]:
        if isinstance(self.hook, CompiledHook):
            return self.hook.waiter
        return self._python_stand_in()

    def _python_stand_in(self) -> Callable[[Wait], Wait]:
        return stand_in_for_wait(
            self.recorder.completions,
            self.guard,
            recording=lambda: not self.failed,
            failed=self.lifecycle.note_failure,
        )

    def _listener(self) -> Listener:
        """The recorder, wrapped to check all-reduces if the user asked for that."""
        if not self.settings.check_reduce:
            return self.recorder
        from hangscope.recording.reduction_checks import ReductionChecks
        from hangscope.toolkit.reductions.sampler import ReductionSampler

        sampler = ReductionSampler(self.settings.check_reduce, directory=self.ring.path.parent)
        return ReductionChecks(self.recorder, sampler)

    def _catch_up(self) -> None:
        if not self.failed:
            self.recorder.catch_up()

    def _before_exit(self) -> None:
        """The interpreter is shutting down: no other thread of ours may touch torch from now on."""
        self.watcher.pause(PAUSE_TIMEOUT_S)
        self._catch_up()

    def _after_program(self) -> None:
        self.watcher.watch_exit()

    def _unregister_fault_handler(self) -> None:
        if self._fault_file is not None:
            faulthandler.unregister(self._fault_signal)
            self._fault_file.close()
            self._fault_file = None
            self.ring.put_u4("fault_signal", 0)

    def fail(self, error: BaseException) -> None:
        """The recorder has failed: print one line and let the job go on unrecorded."""
        try:
            if self.failed:
                return
            self.failed = True
            self.hook.listening = False
            self.watcher.stop()
            where = _where(error)
            warn_once(f"recording stopped, the job goes on: {type(error).__name__}: {error}{where}")
            self.ring.put_u4("disabled", self.ring.text(f"{type(error).__name__}: {error}{where}"))
        except Exception:
            pass

    def guard(self, error: BaseException) -> None:
        """Call `fail`; never raises an error of our own, even if that fails.

        An exception raised by one of the job's signal handlers is passed on to the job.
        """
        foreign = False
        try:
            foreign = is_user_exception(error)
            if not foreign:
                self.fail(error)
        except Exception:
            self.failed = True
            self.hook.listening = False
        if foreign:
            raise error

    def manual(self) -> ManualRecorder:
        """The recorder behind ``hangscope.record``."""
        if self._manual is None:
            self._manual = ManualRecorder(self.recorder)
        return self._manual

    # -- pieces ----------------------------------------------------------------------------

    def forked(self) -> None:
        """In a forked child: the parent's ring must never be touched from here."""
        self.hook.listening = False
        self.failed = True

    def leave(self) -> None:
        """In a forked child that becomes a rank itself: remove this recording from the process.

        The ring belongs to the parent; nothing is written to it.
        """
        self.forked()
        self.hook.remove()
        self.lifecycle.remove()
        self._patches.undo()
        if self._fault_file is not None:
            faulthandler.unregister(self._fault_signal)
            self._fault_file.close()
            self._fault_file = None

    def _phase_stack(self) -> PhaseStack | None:
        return None if self.failed or os.getpid() != self.pid else self.phases

    def _wrap_functions(self) -> None:
        for name in WRAPPED:
            after = getattr(self, f"_after_{name}", self._after_new_group)
            before = getattr(self, f"_before_{name}", lambda args, kwargs: None)
            wrap = wrap_phase(self._phase_stack, name, before, after, self.guard)
            if name == "init_process_group":
                wrap = start_in_child(wrap, self.pid, self.leave, self._start)
            self._patches.replace_function(name, wrap)

    def _before_init_process_group(self, args: Any, kwargs: Any) -> None:
        """Record rank and world size before the call, which may wait for ever."""
        if self._phase_stack() is None:
            return
        import torch.distributed as dist

        if dist.is_initialized():
            return  # torch refuses the call
        self.phases.restart_group_count()
        said = declaration(args, kwargs, os.environ)
        if said.place is not None:
            self.ring.put_world(*said.place)
        # A second job in this process may have another rendezvous, or one that is not known.
        self.ring.put_u4("rendezvous", self.ring.text(said.rendezvous) if said.rendezvous else 0)

    def _after_init_process_group(self, result: Any, args: Any, kwargs: Any) -> None:
        if self._phase_stack() is not None:
            self._note_world()

    def _note_world(self) -> None:
        """Record rank and world size in the default group, which exists by now."""
        import torch.distributed as dist

        self.recorder.groups.scan()
        self.ring.put_world(dist.get_rank(), dist.get_world_size())
        self.ring.put_u4("backend", self.ring.text(str(dist.get_backend())))
        self.ring.put_u4("finalized", 0)
        self.ring.put_u4("initialized", 1)

    def _note_existing_world(self) -> None:
        """Recording may begin long after ``init_process_group``."""
        import torch.distributed as dist

        if dist.is_initialized():
            self._note_world()

    def _after_new_group(self, result: Any, args: Any, kwargs: Any) -> None:
        if self._phase_stack() is not None:
            self.recorder.groups.scan()

    def _before_destroy_process_group(self, args: Any, kwargs: Any) -> None:
        if self._phase_stack() is None:
            return
        import torch.distributed.distributed_c10d as c10d

        group = kwargs.get("group", args[0] if args else None)
        everything = group is None or group is c10d.GroupMember.WORLD
        self.recorder.catch_up()
        self.recorder.groups.destroyed(None if everything else group)
        if everything:
            self.ring.put_u4("finalized", 1)

    def _after_destroy_process_group(self, result: Any, args: Any, kwargs: Any) -> None:
        if self._phase_stack() is None:
            return
        self.recorder.catch_up()
        import torch.distributed as dist

        if not dist.is_initialized():
            self.ring.put_u4("initialized", 0)

    def _watch_coalescing(self) -> None:
        import torch.distributed as dist

        recorder, fail, alive = self.recorder, self.guard, self._phase_stack
        start = getattr(dist.ProcessGroup, "_start_coalescing", None)
        end = getattr(dist.ProcessGroup, "_end_coalescing", None)
        if start is None or end is None:
            return

        def _start_coalescing(group: Any, *args: Any, **kwargs: Any) -> Any:
            result = start(group, *args, **kwargs)
            try:
                if alive() is not None:
                    recorder.coalescing_started(group)
            except Exception as error:
                fail(error)
            return result

        def _end_coalescing(group: Any, *args: Any, **kwargs: Any) -> Any:
            work = end(group, *args, **kwargs)
            try:
                if alive() is not None:
                    recorder.coalescing_ended(group, work)
            except Exception as error:
                fail(error)
            return work

        self._patches.replace(dist.ProcessGroup, "_start_coalescing", _start_coalescing)
        self._patches.replace(dist.ProcessGroup, "_end_coalescing", _end_coalescing)

    def _watch_python_groups(self) -> None:
        groups = PythonGroups(
            self.recorder,
            self._patches,
            self.guard,
            stand_in=self._python_stand_in(),
            recording=lambda: self._phase_stack() is not None,
        )
        self.recorder.groups.on_register.append(groups.watch)

    def _register_fault_handler(self) -> None:
        """Let the monitor request stacks when no Python code here can take the GIL.

        faulthandler writes them from C on an unused real-time signal. The ring holds its number, so
        a process that did not register is never signalled.
        """
        unused = (n for n in reversed(STACK_SIGNALS) if signal.getsignal(n) == signal.SIG_DFL)
        number = next(unused, 0) if self.settings.stacks else 0
        if not number:
            return
        try:
            with opened(self.ring.path.parent) as folder:
                descriptor = folder.fresh_file(stacks_file(self.ring.path.name))
            self._fault_file = open(descriptor, "w", encoding="utf-8")  # noqa: SIM115 - kept open
            faulthandler.register(number, file=self._fault_file, all_threads=True, chain=False)
        except (OSError, RuntimeError, ValueError, AttributeError):
            return
        self._fault_signal = number
        self.ring.put_u4("fault_signal", number)

    def _note_unobservable(self) -> None:
        bits = 0
        if os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") not in ("", "0"):
            bits |= Unobservable.BLOCKING_WAIT
        self.ring.put_u4("unobservable", bits)
        self.ring.put_i8("main_thread", _main_thread_number())


def _main_thread_number() -> int:
    """The kernel's id of the main thread.

    In a forked process, Python 3.11 and older still give the parent's; it is the process id there.
    """
    number = threading.main_thread().native_id or 0
    return number if os.path.exists(f"/proc/self/task/{number}") else os.getpid()


_running: weakref.WeakSet[Session] = weakref.WeakSet()
_has_fork_hook = False


def _register_fork_hook(session: Session) -> None:
    """Call `Session.forked` in forked children. Registered once, as it cannot be unregistered."""
    global _has_fork_hook
    _running.add(session)
    if not _has_fork_hook:
        os.register_at_fork(after_in_child=_forked)
        _has_fork_hook = True


def _forked() -> None:
    for session in list(_running):
        session.forked()


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
