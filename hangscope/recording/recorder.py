"""The hot path: one call of a ``c10d::`` operator becomes one record in the ring.

Counted in microseconds. In the steady state a call costs a dictionary look-up for its group, its
signature and its stack each, one ``pack_into`` and a few single stores.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hangscope.recording.groups import (
    MAX_PENDING,
    DeviceBackend,
    GroupRegistry,
    GroupState,
    Pending,
    completed_flags,
)
from hangscope.recording.operations import OpSpec
from hangscope.recording.signatures import Shapes, SignatureInterner, extend_history
from hangscope.recording.stacks import StackInterner
from hangscope.ring.layout import SlotFlag
from hangscope.ring.writer import RingWriter

_P2P = int(SlotFlag.P2P)
_ASYNC = int(SlotFlag.ASYNC)
_MEMBER = int(SlotFlag.COALESCED_MEMBER)
_BATCH = int(SlotFlag.COALESCED_BATCH)
_UNOBSERVED = int(SlotFlag.UNOBSERVED)
_COALESCED_COLLECTIVE = 1
_COALESCED_P2P = 2
_SIGN = 1 << 63


class Token(NamedTuple):
    """Ties what happens after an operator's call to the record made before it."""

    state: GroupState
    record_id: int
    collective_seq: int
    flags: int
    pollable: bool
    blocking: bool


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
    """

    def __init__(
        self,
        ring: RingWriter,
        complain: Callable[[str], None],
        *,
        stacks: bool = True,
        record_fake: bool = False,
    ) -> None:
        import torch
        import torch.distributed as dist

        self.ring = ring
        self.groups = GroupRegistry(ring, complain, record_fake)
        self._stacks = StackInterner(ring) if stacks else None
        self._signatures = SignatureInterner(ring)
        self._lock = threading.RLock()
        self._drain_lock = threading.Lock()
        self._record_id = 0
        self._q = ring._q
        self._thread_ids: dict[int, int] = {}
        self._unbox_group = dist.ProcessGroup.unbox
        self._unbox_work = dist.Work.unbox
        self._plain_types = frozenset({torch.Tensor, torch.nn.Parameter})
        self._script_object = torch.ScriptObject
        self._tensor = torch.Tensor

    # -- before the operator ---------------------------------------------------------------

    def begin(self, spec: OpSpec, args: Sequence[Any]) -> Token | None:
        """Record an operation about to be issued; None where it is not to be recorded."""
        process_group = self._group_of(spec, args)
        if process_group is None:
            return None
        state = self.groups.by_identity.get(id(process_group))
        if state is None:
            state = self.groups.register(process_group)
        if not state.recorded:
            return None
        count = len(args)
        inputs, first = self._shapes(args[spec.inputs]) if spec.inputs >= 0 else ((), None)
        if spec.outputs == spec.inputs:
            outputs = inputs
        elif spec.outputs >= 0:
            outputs, first_output = self._shapes(args[spec.outputs])
            first = first if first is not None else first_output
        else:
            outputs = ()
        if first is None:
            device_type = self._device_without_tensors(spec, args)
        elif first.is_cpu:
            device_type = "cpu"
        else:
            device_type = first.device.type
            if device_type == "meta":
                return None
        if (
            first is not None
            and type(first) not in self._plain_types
            and type(first).__name__ in ("FakeTensor", "FunctionalTensor")
        ):
            return None
        backend = state.backends.get(device_type) or state.backend_for(process_group, device_type)
        reduce_op = -1
        if 0 <= spec.reduce_op < count:
            reduce_op = args[spec.reduce_op].op()
        root = peer = -1
        peers = ""
        if spec.root >= 0:
            root = state.global_rank(args[spec.root])
        flags = 0
        if spec.p2p:
            flags = _P2P
            other = args[spec.peer] if spec.peer >= 0 else -1
            peer = state.global_rank(other)
            arrow = "->" if spec.name == "send" else "<-"
            peers = f" {state.group_rank}{arrow}{other if other >= 0 else '?'}"
        elif spec.is_async < 0 or count <= spec.is_async or args[spec.is_async]:
            flags = _ASYNC  # the schema's default is True
        splits = None
        if spec.input_splits >= 0:
            splits = (tuple(args[spec.output_splits]), tuple(args[spec.input_splits]))
        timeout_ms = args[spec.timeout] if 0 <= spec.timeout < count else -1
        signature = self._signatures.get(
            spec, backend.name, inputs, outputs, reduce_op, root, peers, splits
        )
        return self._write(
            state,
            spec,
            signature.identifier,
            signature.agreement,
            signature.input_numel,
            signature.output_numel,
            flags if backend.pollable else flags | _UNOBSERVED,
            root,
            peer,
            backend.timeout_ms if timeout_ms < 0 else timeout_ms,
            backend.pollable,
        )

    def _write(
        self,
        state: GroupState,
        spec: OpSpec,
        signature: int,
        agreement: int,
        input_numel: int,
        output_numel: int,
        flags: int,
        root: int,
        peer: int,
        timeout_ms: int,
        pollable: bool,
    ) -> Token:
        stack = self._stack()
        ident = threading.get_ident()
        thread = self._thread_ids.get(ident)
        if thread is None:
            thread = self._thread_ids[ident] = threading.get_native_id()
        now = time.time_ns()
        q = self._q
        with self._lock:
            coalescing = state.coalescing_thread == ident
            if coalescing:
                flags |= _MEMBER
            kind = _COALESCED_P2P if flags & _P2P else _COALESCED_COLLECTIVE
            if not (coalescing and state.coalesced_kinds & kind):
                # The first of its kind in a batch advances the counter for the whole batch.
                if flags & _P2P:
                    state.p2p_seq += 1
                else:
                    state.collective_seq += spec.sequence_step
            if coalescing:
                state.coalesced_kinds |= kind
            if not flags & _P2P:
                state.history = extend_history(state.history, agreement)
            state.op_id += 1
            self._record_id = record_id = self._record_id + 1
            seq = state.collective_seq
            history = state.history
            self.ring.write_record(
                record_id,
                now,
                0,
                0,
                seq,
                state.p2p_seq,
                state.op_id,
                history,
                state.index,
                signature,
                stack,
                peer,
                root,
                thread,
                timeout_ms,
                input_numel,
                output_numel,
                0,
                flags,
            )
            q[state.cell_enqueued] = seq
            q[state.cell_p2p] = state.p2p_seq
            q[state.cell_history] = history - (1 << 64) if history & _SIGN else history
            q[state.cell_enqueued_ns] = now
            q[state.cell_op_id] = state.op_id
        return Token(state, record_id, seq, flags, pollable, spec.blocking)

    def begin_manual(
        self, state: GroupState, spec: OpSpec, backend: DeviceBackend, tensors: Sequence[Any]
    ) -> Token:
        """Record an operation that does not pass the dispatcher."""
        shapes, _ = self._shapes(tensors)
        signature = self._signatures.get(spec, backend.name, shapes, shapes, -1, -1, "", None)
        return self._write(
            state,
            spec,
            signature.identifier,
            signature.agreement,
            signature.input_numel,
            signature.output_numel,
            0,
            -1,
            -1,
            0,
            False,
        )

    def end_manual(self, token: Token, *, succeeded: bool) -> None:
        """The caller says that its operation is over."""
        now = self._finish(token.record_id, token.flags, succeeded=succeeded)
        if succeeded:
            state = token.state
            state.completed = max(state.completed, token.collective_seq)
            self._q[state.cell_completed] = state.completed
            self._q[state.cell_completed_ns] = now

    def world(self) -> tuple[int, int]:
        """(rank, world size) of this process as far as it is known."""
        import torch.distributed as dist

        if dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        from hangscope.recording.identity import place_from_environment

        place = place_from_environment(os.environ)
        return (place.rank, place.world_size) if place else (0, 1)

    # -- after the operator ----------------------------------------------------------------

    def issued(self, token: Token, result: Any) -> None:
        """The operator returned: watch its Work, and note what has finished meanwhile."""
        state = token.state
        if token.blocking:
            self._finish(token.record_id, token.flags, succeeded=True)
            return
        if not token.pollable:
            return
        pending = state.pending
        if pending and pending[0].work.is_completed():
            self.drain(state)
        work = result[-1] if type(result) is tuple else result
        if type(work) is not self._script_object:
            return
        if len(pending) >= MAX_PENDING:
            oldest = pending.popleft()
            self.ring.set_record(
                oldest.record_id, state=0, flags=oldest.flags | _UNOBSERVED, completed_ns=0
            )
        pending.append(
            Pending(
                self._unbox_work(work),
                token.record_id,
                token.collective_seq,
                token.flags,
                bool(token.flags & _P2P),
            )
        )

    def raised(self, token: Token) -> None:
        """The operator raised: the operation was never issued to the backend."""
        self._finish(token.record_id, token.flags, succeeded=False)

    def drain(self, state: GroupState) -> None:
        """Note which of a group's operations have finished; gives up where another thread is."""
        if not self._drain_lock.acquire(blocking=False):
            return
        try:
            pending = state.pending
            while pending and pending[0].work.is_completed():
                self._finish_pending(state, pending.popleft())
            # Behind an unfinished head others may be done: independent operations overtake.
            for entry in list(pending)[1:64]:
                if entry.work.is_completed():
                    self._finish_pending(state, entry)
                    pending.remove(entry)
        finally:
            self._drain_lock.release()

    def drain_all(self) -> None:
        """`drain` for every group: the watcher's turn."""
        for state in self.groups.states():
            if state.pending:
                self.drain(state)

    def _finish_pending(self, state: GroupState, entry: Pending) -> None:
        succeeded = entry.is_p2p or _succeeded(entry.work)
        now = self._finish(entry.record_id, entry.flags, succeeded=succeeded)
        if succeeded and not entry.is_p2p and entry.collective_seq > state.completed:
            head = state.pending[0].collective_seq if state.pending else entry.collective_seq + 1
            if head >= entry.collective_seq:
                state.completed = entry.collective_seq
                self._q[state.cell_completed] = entry.collective_seq
                self._q[state.cell_completed_ns] = now

    def _finish(self, record_id: int, flags: int, *, succeeded: bool) -> int:
        now = time.time_ns()
        self.ring.set_record(
            record_id,
            state=2 if succeeded else 0,
            flags=completed_flags(flags, succeeded),
            completed_ns=now if succeeded else 0,
        )
        return now

    # -- coalescing ------------------------------------------------------------------------

    def coalescing_started(self, process_group: Any) -> None:
        """``ProcessGroup._start_coalescing`` was called on this thread."""
        state = self.groups.register(process_group)
        state.coalescing_thread = threading.get_ident()
        state.coalesced_kinds = 0

    def coalescing_ended(self, process_group: Any, work: Any) -> None:
        """``ProcessGroup._end_coalescing`` returned: one record stands for the batch."""
        state = self.groups.register(process_group)
        kinds = state.coalesced_kinds
        state.coalescing_thread = state.coalesced_kinds = 0
        if not kinds or not state.recorded:
            return
        backend = next(iter(state.backends.values()), None)
        name = backend.name if backend else ""
        spec = OpSpec("coalesced", "coalesced", sequence_step=0)
        signature = self._signatures.get(spec, name, (), (), -1, -1, "", None)
        pollable = backend is not None and backend.pollable and work is not None
        flags = _BATCH | _ASYNC | (0 if pollable else _UNOBSERVED)
        if kinds == _COALESCED_P2P:
            flags |= _P2P
        token = self._write(state, spec, signature.identifier, 0, 0, 0, flags, -1, -1, 0, pollable)
        if pollable:
            state.pending.append(
                Pending(work, token.record_id, token.collective_seq, flags, bool(flags & _P2P))
            )

    # -- pieces ----------------------------------------------------------------------------

    def _group_of(self, spec: OpSpec, args: Sequence[Any]) -> Any:
        if spec.group >= 0:
            return self._unbox_group(args[spec.group])
        for value in args:  # an operator we do not know: look for its group
            if type(value) is self._script_object:
                try:
                    return self._unbox_group(value)
                except Exception:
                    continue
        return None

    def _shapes(self, value: Any) -> tuple[Shapes, Any]:
        """Shapes and dtypes of a tensor, a list or a list of lists; and the first tensor."""
        if isinstance(value, self._tensor):
            return ((value.shape, value.dtype),), value
        shapes: list[tuple[tuple[int, ...], Any]] = []
        first = None
        for item in value:
            if isinstance(item, self._tensor):
                if first is None:
                    first = item
                shapes.append((item.shape, item.dtype))
            else:
                for tensor in item:
                    if first is None:
                        first = tensor
                    shapes.append((tensor.shape, tensor.dtype))
        return tuple(shapes), first

    def _device_without_tensors(self, spec: OpSpec, args: Sequence[Any]) -> str:
        """A barrier's device is that of its dummy tensor."""
        if args and isinstance(args[0], self._tensor):
            return str(args[0].device.type)
        return "cpu"

    def _stack(self) -> int:
        if self._stacks is None:
            return 0
        # 0 is this method, 1 `_write`, 2 `begin`, 3 the kernel; the caller's frames begin at 4.
        try:
            frame = sys._getframe(4)
        except ValueError:
            # A C++ thread (autograd, say) has no Python frames: the main thread's tell what led
            # here.
            return self._stacks.main_thread()
        return self._stacks.current(frame)


def _succeeded(work: Any) -> bool:
    """Whether a finished collective's result is there (asking the Work itself is deprecated)."""
    try:
        future = work.get_future()
    except Exception:
        return True  # this backend's Works carry no future: finished is all there is to know
    try:
        future.value()
    except Exception:
        return False
    return True
