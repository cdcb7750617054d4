"""The hot path: one call of a ``c10d::`` operator becomes one record in the ring.

Every microsecond counts here. In the steady state a call costs one dictionary look-up each for its
group, signature and stack, one ``pack_into`` and a few single stores. The functions called for
every operation are closures, because cell variables are faster than attributes.

There is no lock. What must be atomic (updating a group's counters and taking the record's number)
is a run of plain loads, stores and arithmetic without a call (see `hangscope.ring.atomic`).
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Sequence
from sys import _getframe as getframe
from threading import get_ident
from time import time_ns
from types import FrameType
from typing import Any

from hangscope.recording.completion import Completions
from hangscope.recording.groups import DeviceBackend, GroupRegistry, GroupState, Pending
from hangscope.recording.limits import DRAIN_AT, MAX_PLANS
from hangscope.recording.operations import OpSpec, blocking_flag_reader
from hangscope.recording.plans import Plan, PlanKey, Planner
from hangscope.recording.reduce_ops import MAX_UNREAD, Reductions
from hangscope.recording.signatures import FACTOR, INCREMENT, MASK, SignatureInterner
from hangscope.recording.stacks import HANDLING, StackInterner
from hangscope.ring.atomic import exclusive
from hangscope.ring.layout import SlotFlag, Unobservable, group_offset, header_offset
from hangscope.ring.writer import LAST_RECORD_CELL, RingWriter, pack_slot

_P2P = int(SlotFlag.P2P)
_ASYNC = int(SlotFlag.ASYNC)
_MEMBER = int(SlotFlag.COALESCED_MEMBER)
_BATCH = int(SlotFlag.COALESCED_BATCH)
_FAILED = int(SlotFlag.FAILED)
_UNOBSERVED = int(SlotFlag.UNOBSERVED)
_COALESCED_COLLECTIVE = 1
_COALESCED_P2P = 2
_NOT_THE_CALLER = frozenset({"hangscope", "contextlib"})
_SIGN = 1 << 63
_WRAP = 1 << 64
# Counters in a group's entry, as eight-byte cells from its start.
_ENQUEUED, _P2P_ENQUEUED, _HISTORY, _ENQUEUED_NS = (
    group_offset(name) // 8 for name in ("enqueued", "p2p_enqueued", "history", "enqueued_ns")
)


Token = Pending
"""Connects the end of an operator's call to the record made at its start: a `Pending` entry whose
Work is not known yet. A plain list for speed, as every call makes one."""
Begin = Callable[[tuple[Any, ...]], "Token | None"]


class Recorder:
    """Records operations of this process into its ring.

    Parameters
    ----------
    ring:
        Where records go.
    complain:
        Called with one line when something is not recorded.
    stacks:
        Whether Python stacks are recorded.
    record_fake:
        Whether groups of backend ``fake`` are recorded (benchmarks).
    failed:
        Called when an operator has raised, while that exception is being handled.
    """

    def __init__(
        self,
        ring: RingWriter,
        complain: Callable[[str], None],
        *,
        stacks: bool = True,
        record_fake: bool = False,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        import torch
        import torch.distributed as dist

        self.ring = ring
        self.failed = failed
        self.groups = GroupRegistry(ring, complain, record_fake)
        self.completions = Completions(ring)
        self._boxed = self.completions.boxed
        self.stacks = StackInterner(ring) if stacks else None
        self._signatures = SignatureInterner(ring)
        self.planner = Planner(self._signatures)
        self.reductions = Reductions(ring, self._signatures)
        self._unbox_group = dist.ProcessGroup.unbox
        self._unbox_work = dist.Work.unbox
        self._work_box = self._script_object = torch.ScriptObject
        self._captured = False
        self._write = self._writer()

    # -- before the operator ---------------------------------------------------------------

    def beginner(self, spec: OpSpec) -> Begin:  # noqa: C901 one closure: each call in it costs time
        """Make the function that an operator's kernel calls first, to record the operation.

        That function returns None if the operation is not to be recorded.
        """
        import torch

        unbox, search_group = self._unbox_group, self._search_group
        by_identity, register = self.groups.by_identity, self.groups.register
        write, stacks = self._write, self.stacks
        key_of, make_plan = self.planner.key_reader(spec), self.planner.plan
        group_at, reduce_at, p2p = spec.group, spec.reduce_op, spec.p2p
        manner = blocking_flag_reader()
        unread, newest = self.reductions.unread, self.reductions.newest
        function_mode = getattr(torch._C, "_is_torch_function_mode_enabled", bool)
        capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", bool)
        plans: dict[PlanKey, Plan] = {}

        def begin(args: tuple[Any, ...], depth: int = 2) -> Token | None:  # noqa: C901 as above
            if depth == 2 and function_mode():
                # Reading a shape must not run the job's own torch-function modes.
                with torch._C.DisableTorchFunction():
                    return begin(args, 3)
            process_group = unbox(args[group_at]) if group_at >= 0 else search_group(args)
            if process_group is None:
                return None
            state = by_identity.get(id(process_group))
            if state is None:
                state = register(process_group)
            if not state.recorded:
                return None
            key = key_of(args, state.index)
            plan = None if key is None else plans.get(key)
            if plan is None:
                plan = make_plan(spec, args, state, process_group)
                if plan is None:
                    return None
                if key is not None:
                    if len(plans) >= MAX_PLANS:
                        plans.clear()
                    plans[key] = plan
            if plan[9] and capturing():
                self.note_capture()
            if p2p:
                try:
                    plan = (plan[0] | manner(getframe(depth)), *plan[1:])
                except ValueError:  # a C++ thread
                    pass
            stack = 0
            if stacks is not None:
                try:
                    frame = getframe(depth)  # 0 is this function, 1 the kernel, 2 the caller
                except ValueError:
                    # A C++ thread (autograd, say) has no Python frames; the main thread's stack
                    # shows what led here.
                    stack = stacks.main_thread()
                else:
                    stack = stacks.current(frame)
                if stack >= HANDLING:
                    stack, mark = stacks.unmarked(stack)
                    plan = (plan[0] | mark, *plan[1:])
            token = write(state, plan, stack)
            if 0 <= reduce_at < len(args):
                waiting = unread if len(unread) < MAX_UNREAD else newest
                waiting.append((token[0], args[reduce_at], plan[10], spec))
            return token

        return begin

    def _writer(self) -> Callable[..., Token]:
        """Make the function that numbers a record and stores it."""
        local = threading.local()
        get_native_id = threading.get_native_id
        pack, memory, q = pack_slot, self.ring.memory, self.ring.cells
        slots_at, slot_count = self.ring.slot_at(1), self.ring.slot_count
        newest = published = 0

        def write(state: GroupState, plan: Plan, stack: int) -> Token:
            nonlocal newest, published
            (flags, step, root, peer, timeout_ms, identifier, agreement, input_numel, output_numel,
             _, _) = plan  # fmt: skip
            try:
                thread = local.native_id
            except AttributeError:
                thread = local.native_id = get_native_id()
            batching = state.coalescing_thread
            if batching and batching != get_ident():
                batching = 0
            now = time_ns()
            # No call from here ...
            fresh = True
            if batching:
                # The first operation of its kind advances the counter for the whole batch.
                kind = _COALESCED_P2P if flags & _P2P else _COALESCED_COLLECTIVE
                fresh = not state.coalesced_kinds & kind
                state.coalesced_kinds |= kind
                flags |= _MEMBER
            if flags & _P2P:
                if fresh and not flags & _BATCH:  # a batch record shares its members' number
                    state.p2p_seq += 1
            else:
                if fresh:
                    state.seq_before = state.collective_seq
                    state.collective_seq += step
                # One step of `signatures.extend_history`, inlined.
                state.history_before = state.history
                state.history = (state.history * FACTOR + agreement + INCREMENT) & MASK or 1
            state.op_id = op_id = state.op_id + 1
            newest = record_id = newest + 1
            seq, p2p_seq, history = state.collective_seq, state.p2p_seq, state.history
            # ... to here.
            pack(
                memory, slots_at + ((record_id - 1) % slot_count) * 128, record_id, now, 0, 0, seq,
                p2p_seq, op_id, history, state.index, identifier, stack, peer, root, thread,
                timeout_ms, input_numel, output_numel, 0, flags, record_id,
            )  # fmt: skip
            # No call from here to the end: another thread may have published a newer record.
            if published < record_id:
                q[LAST_RECORD_CELL] = published = record_id
            if state.published < op_id:
                state.published = op_id
                base = state.cells
                q[base + _ENQUEUED] = seq
                q[base + _P2P_ENQUEUED] = p2p_seq
                q[base + _HISTORY] = history if history < _SIGN else history - _WRAP
                q[base + _ENQUEUED_NS] = now
            return [record_id, None, seq, flags, state]

        return exclusive(write)

    # -- after the operator ----------------------------------------------------------------

    def issuer(self, spec: OpSpec) -> Callable[[Token, Any], None]:
        """Make the function that an operator's kernel calls after it: it watches the Work."""
        completions, work_box, boxed = self.completions, self._work_box, self._boxed
        drain, may_be_late = completions.drain, spec.p2p

        def issued(token: Token, result: Any) -> None:
            _, _, seq, flags, state = token
            work = result[-1] if type(result) is tuple else result
            if flags & _UNOBSERVED:
                if spec.gloo_counts and state.observable:
                    token[1] = self._unbox_work(work)
                    completions.expect(token)
            elif spec.blocking:
                now = completions.finish(token[0], flags, succeeded=True)
                completions.completed(state, seq, now)
            elif type(work) is work_box:
                token[1] = work
                pending = state.pending
                if len(pending) >= DRAIN_AT:  # else left to the watcher or the job's own wait
                    drain(state)
                pending.append(token)
                boxed.append(token)
                if may_be_late:
                    completions.drop_lost_exchanges()
                    if flags & _ASYNC:
                        completions.unbox()  # so that the start of its wait is seen as well

        return issued

    def raised(self, spec: OpSpec, token: Token) -> None:
        """The operator raised: its peer is gone, or the backend rejected its arguments."""
        self.take_back(spec, token)
        self.failed()

    def take_back(self, spec: OpSpec, token: Token) -> None:
        """Mark an operation as failed on issue.

        If the backend rejected its arguments, the backend's own counter has not advanced. Ours must
        not either: the next operation gets the same number.
        """
        record_id, _, seq, flags, state = token
        self.completions.finish(record_id, flags, succeeded=False)
        if flags & (_P2P | _MEMBER) or spec.blocking or state.collective_seq != seq:
            return
        before = state.seq_before
        # Gloo counts point-to-point operations along with the others.
        if state.native_sequence() in (before, before + state.p2p_seq):
            state.collective_seq = before
            state.history = history = state.history_before
            q = self.ring.cells
            q[state.cells + _ENQUEUED] = before
            q[state.cells + _HISTORY] = history if history < _SIGN else history - _WRAP
            self.ring.forget_record(record_id)

    def use_compiled(self, module: Any, recording: Any) -> None:
        """Let the compiled module number and store the records, those made here included."""
        self._write = recording.write
        self._work_box, self._unbox_work = module.BoxedWork, module.unbox
        self.completions.use_compiled(module, recording)
        self.groups.on_forget.append(recording.forget)

    def catch_up(self) -> bool:
        """Do what the hot path has deferred to the watcher; True if there was anything to do."""
        return self.reductions.read() | self.completions.drain_all(self.groups.states())

    # -- operations that do not pass the dispatcher ------------------------------------------

    def begin_manual(
        self, state: GroupState, spec: OpSpec, backend: DeviceBackend, tensors: Sequence[Any]
    ) -> Token:
        """Record an operation that the job names itself."""
        shapes = self.planner.shapes(list(tensors))
        key = (spec.operator, backend.name, shapes, shapes, -1, -1, "", None)
        signature = self._signatures.get(key, spec)
        stack, flags = self._stack()
        return self._write(state, (flags, 1, -1, -1, 0, *signature, False, key), stack)

    def begin_python(
        self, spec: OpSpec, args: tuple[Any, ...], process_group: Any, flags: int
    ) -> Token | None:
        """Record an operation of a group written in Python; `PythonGroups` tells its end."""
        state = self.groups.register(process_group)
        if not state.recorded:
            return None
        operation = args[spec.reduce_op] if spec.reduce_op >= 0 else None
        number = -1 if operation is None else int(getattr(operation, "op", operation))
        plan = self.planner.plan(spec, args, state, process_group, number)
        if plan is None:
            return None
        stack, leaving = self._stack()
        return self._write(state, (plan[0] | flags | leaving | _UNOBSERVED, *plan[1:]), stack)

    def end_manual(self, token: Token, *, succeeded: bool) -> None:
        """The job says that its operation is over, whether or not it raised."""
        record_id, _, seq, flags, state = token
        flags |= 0 if succeeded else _FAILED
        now = self.completions.finish(record_id, flags, succeeded=True)
        self.completions.completed(state, seq, now)

    def world(self) -> tuple[int, int]:
        """(rank, world size) of this process as known so far."""
        import torch.distributed as dist

        if dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        from hangscope.ring.job_place import place_from_environment

        place = place_from_environment(os.environ)
        return (place.rank, place.world_size) if place else (0, 1)

    def coalescing_started(self, process_group: Any) -> None:
        """``ProcessGroup._start_coalescing`` was called on this thread."""
        state = self.groups.register(process_group)
        state.coalesced_kinds = 0
        state.coalescing_thread = get_ident()

    def coalescing_ended(self, process_group: Any, work: Any) -> None:
        """``ProcessGroup._end_coalescing`` returned: one record stands for the batch."""
        state = self.groups.register(process_group)
        kinds = state.coalesced_kinds
        state.coalescing_thread = state.coalesced_kinds = 0
        if not kinds or not state.recorded:
            return
        backend = next(iter(state.backends.values()), None)
        spec = OpSpec("coalesced", "coalesced")
        key = (spec.operator, backend.name if backend else "", (), (), -1, -1, "", None)
        signature = self._signatures.get(key, spec)._replace(agreement=0)
        flags = _BATCH | _ASYNC
        if backend is None or not backend.pollable or work is None:
            flags |= _UNOBSERVED
        if kinds == _COALESCED_P2P:
            flags |= _P2P
        stack, leaving = self._stack()
        plan = (flags | leaving, 0, -1, -1, 0, *signature, False, key)
        token = self._write(state, plan, stack)
        if not flags & _UNOBSERVED:
            self.completions.watch([token[0], work, token[2], flags, state])

    # -- pieces ----------------------------------------------------------------------------

    def _stack(self) -> tuple[int, int]:
        """The caller's stack without our own frames, and the record flag that follows from it."""
        if self.stacks is None:
            return 0, 0
        frame: FrameType | None = getframe(1)
        while frame is not None and (
            str(frame.f_globals.get("__name__", "")).partition(".")[0] in _NOT_THE_CALLER
        ):
            frame = frame.f_back
        stack = self.stacks.current(frame) or self.stacks.main_thread()
        return self.stacks.unmarked(stack) if stack >= HANDLING else (stack, 0)

    def note_capture(self) -> None:
        """Note that collectives are captured in a CUDA graph: its replays bypass the dispatcher."""
        if not self._captured:
            self._captured = True
            at = header_offset("unobservable")
            (bits,) = struct.unpack_from("=I", self.ring.memory, at)
            self.ring.put_u4("unobservable", bits | Unobservable.CUDA_GRAPH)

    def group_of(self, spec: OpSpec, args: Sequence[Any]) -> Any:
        """The process group of an operation with these arguments; None if there is none."""
        return self._unbox_group(args[spec.group]) if spec.group >= 0 else self._search_group(args)

    def _search_group(self, args: Sequence[Any]) -> Any:
        """Find the process group among the arguments of an unknown operator."""
        for value in args:
            if type(value) is self._script_object:
                try:
                    return self._unbox_group(value)
                except Exception:
                    continue
        return None
