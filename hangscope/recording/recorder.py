"""The hot path: one call of a ``c10d::`` operator becomes one record in the ring.

Counted in microseconds. In the steady state a call costs a dictionary look-up for its group, its
signature and its stack each, one ``pack_into`` and a few single stores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from sys import _getframe as getframe
from threading import get_ident
from time import time_ns
from typing import Any

from hangscope.recording.groups import (
    MAX_PENDING,
    DeviceBackend,
    GroupRegistry,
    GroupState,
    Pending,
    completed_flags,
)
from hangscope.recording.operations import OpSpec
from hangscope.recording.signatures import (
    FACTOR,
    INCREMENT,
    MASK,
    InternedSignature,
    Shapes,
    SignatureInterner,
)
from hangscope.recording.stacks import StackInterner
from hangscope.ring.layout import SLOT_FORMAT, SlotFlag, group_offset
from hangscope.ring.writer import LAST_RECORD_CELL, RingWriter

_P2P = int(SlotFlag.P2P)
_ASYNC = int(SlotFlag.ASYNC)
_MEMBER = int(SlotFlag.COALESCED_MEMBER)
_BATCH = int(SlotFlag.COALESCED_BATCH)
_UNOBSERVED = int(SlotFlag.UNOBSERVED)
_COALESCED_COLLECTIVE = 1
_COALESCED_P2P = 2
_SIGN = 1 << 63
_WRAP = 1 << 64
_FAKE_TENSORS = frozenset({"FakeTensor", "FunctionalTensor"})
# Counters of a group's entry, in eight-byte cells from its first.
_ENQUEUED, _COMPLETED, _P2P_ENQUEUED, _HISTORY, _ENQUEUED_NS, _COMPLETED_NS, _OP_ID = (
    group_offset(name) // 8
    for name in (
        "enqueued", "completed", "p2p_enqueued", "history", "enqueued_ns", "completed_ns", "op_id",
    )
)  # fmt: skip


Token = tuple[GroupState, int, int, int, bool]
"""Ties what happens after an operator's call to the record made before it: group, record id,
collective sequence number, flags, blocking. A plain tuple: it is made once a call."""


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
        self._map = ring._map
        self._pack = SLOT_FORMAT.pack_into
        self._slots_at = ring.slot_at(1)
        self._slot_count = ring.slot_count
        self._thread_ids: dict[int, int] = {}
        self._unbox_group = dist.ProcessGroup.unbox
        self._unbox_work = dist.Work.unbox
        self._plain_types = frozenset({torch.Tensor, torch.nn.Parameter})
        self._script_object = torch.ScriptObject
        self._tensor = torch.Tensor

    # -- before the operator ---------------------------------------------------------------

    def begin(self, spec: OpSpec, args: Sequence[Any]) -> Token | None:
        """Record an operation about to be issued; None where it is not to be recorded."""
        process_group = (
            self._unbox_group(args[spec.group]) if spec.group >= 0 else self._search_group(args)
        )
        if process_group is None:
            return None
        state = self.groups.by_identity.get(id(process_group))
        if state is None:
            state = self.groups.register(process_group)
        if not state.recorded:
            return None
        count = len(args)
        first = None
        inputs: Shapes = ()
        if spec.inputs >= 0:
            inputs, first = self._shapes(args[spec.inputs])
        outputs = inputs
        if spec.outputs != spec.inputs:
            outputs = ()
            if spec.outputs >= 0:
                outputs, first_output = self._shapes(args[spec.outputs])
                if first is None:
                    first = first_output
        if first is None:
            device_type = self._device_without_tensors(args)
        else:
            device_type = "cpu" if first.is_cpu else first.device.type
            if device_type == "meta" or (
                type(first) not in self._plain_types and type(first).__name__ in _FAKE_TENSORS
            ):
                return None
        backend = state.backends.get(device_type)
        if backend is None:
            backend = state.backend_for(process_group, device_type)
        flags = 0 if backend.pollable else _UNOBSERVED
        root = peer = reduce_op = -1
        peers = ""
        splits = None
        if 0 <= spec.reduce_op < count:
            reduce_op = args[spec.reduce_op].op()
        if spec.root >= 0:
            root = state.global_rank(args[spec.root])
        if spec.p2p:
            flags |= _P2P
            other = args[spec.peer] if spec.peer >= 0 else -1
            peer = state.global_rank(other)
            arrow = "->" if spec.name == "send" else "<-"
            peers = f" {state.group_rank}{arrow}{other if other >= 0 else '?'}"
        elif spec.is_async < 0 or count <= spec.is_async or args[spec.is_async]:
            flags |= _ASYNC  # the schema's default is True
        if spec.input_splits >= 0:
            splits = (tuple(args[spec.output_splits]), tuple(args[spec.input_splits]))
        timeout_ms = args[spec.timeout] if 0 <= spec.timeout < count else -1
        if timeout_ms < 0:
            timeout_ms = backend.timeout_ms
        key = (spec.operator, backend.name, inputs, outputs, reduce_op, root, peers, splits)
        signature = self._signatures.known.get(key)
        if signature is None:
            signature = self._signatures.intern(key, spec)
        return self._write(state, spec, signature, flags, root, peer, timeout_ms)

    def _write(
        self,
        state: GroupState,
        spec: OpSpec,
        signature: InternedSignature,
        flags: int,
        root: int,
        peer: int,
        timeout_ms: int,
    ) -> Token:
        stacks = self._stacks
        stack = 0
        if stacks is not None:
            try:
                # 0 is this method, 1 `begin`, 2 the kernel; the caller's frames begin at 3.
                stack = stacks.current(getframe(3))
            except ValueError:
                # A C++ thread (autograd, say) has no Python frames: the main thread's tell what
                # led here.
                stack = stacks.main_thread()
        ident = get_ident()
        thread = self._thread_ids.get(ident)
        if thread is None:
            thread = self._thread_ids[ident] = threading.get_native_id()
        identifier, agreement, input_numel, output_numel = signature
        now = time_ns()
        q = self._q
        with self._lock:
            coalescing = state.coalescing_thread == ident
            fresh = True
            if coalescing:
                # The first of its kind in a batch advances the counter for the whole batch.
                kind = _COALESCED_P2P if flags & _P2P else _COALESCED_COLLECTIVE
                fresh = not state.coalesced_kinds & kind
                state.coalesced_kinds |= kind
                flags |= _MEMBER
            if flags & _P2P:
                if fresh:
                    state.p2p_seq += 1
            else:
                if fresh:
                    state.collective_seq += spec.sequence_step
                # One step of `signatures.extend_history`, inlined.
                state.history = (state.history * FACTOR + agreement + INCREMENT) & MASK or 1
            state.op_id = op_id = state.op_id + 1
            self._record_id = record_id = self._record_id + 1
            seq, p2p_seq, history = state.collective_seq, state.p2p_seq, state.history
            at = self._slots_at + ((record_id - 1) % self._slot_count) * 128
            self._pack(
                self._map, at, record_id, now, 0, 0, seq, p2p_seq, op_id, history, state.index,
                identifier, stack, peer, root, thread, timeout_ms, input_numel, output_numel, 0,
                flags, record_id,
            )  # fmt: skip
            q[LAST_RECORD_CELL] = record_id
            base = state.cells
            q[base + _ENQUEUED] = seq
            q[base + _P2P_ENQUEUED] = p2p_seq
            q[base + _HISTORY] = history if history < _SIGN else history - _WRAP
            q[base + _ENQUEUED_NS] = now
            q[base + _OP_ID] = op_id
        return (state, record_id, seq, flags, spec.blocking)

    def begin_manual(
        self, state: GroupState, spec: OpSpec, backend: DeviceBackend, tensors: Sequence[Any]
    ) -> Token:
        """Record an operation that does not pass the dispatcher."""
        shapes, _ = self._shapes(tensors)
        key = (spec.operator, backend.name, shapes, shapes, -1, -1, "", None)
        signature = self._signatures.get(key, spec)
        return self._write(state, spec, signature, 0, -1, -1, 0)

    def end_manual(self, token: Token, *, succeeded: bool) -> None:
        """The caller says that its operation is over."""
        state, record_id, seq, flags, _ = token
        now = self._finish(record_id, flags, succeeded=succeeded)
        if succeeded:
            self._complete(state, max(state.completed, seq), now)

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
        state, record_id, seq, flags, blocking = token
        if blocking:
            self._finish(record_id, flags, succeeded=True)
            return
        if flags & _UNOBSERVED:
            return
        pending = state.pending
        if pending and pending[0][0].is_completed():
            self.drain(state)
        work = result[-1] if type(result) is tuple else result
        if type(work) is not self._script_object:
            return
        if len(pending) >= MAX_PENDING:
            _, oldest, _, oldest_flags = pending.popleft()
            self.ring.set_record(oldest, state=0, flags=oldest_flags | _UNOBSERVED, completed_ns=0)
        pending.append((self._unbox_work(work), record_id, seq, flags))

    def raised(self, token: Token) -> None:
        """The operator raised: the operation was never issued to the backend."""
        self._finish(token[1], token[3], succeeded=False)

    def drain(self, state: GroupState) -> None:
        """Note which of a group's operations have finished; gives up where another thread is."""
        if not self._drain_lock.acquire(blocking=False):
            return
        try:
            pending = state.pending
            while pending and pending[0][0].is_completed():
                self._finish_pending(state, pending.popleft())
            if pending:
                # Behind an unfinished head others may be done: independent operations overtake.
                for entry in list(pending)[1:64]:
                    if entry[0].is_completed():
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
        work, record_id, seq, flags = entry
        succeeded = bool(flags & _P2P) or _succeeded(work)
        now = self._finish(record_id, flags, succeeded=succeeded)
        if succeeded and not flags & _P2P and seq > state.completed:
            # "Completed" means everything up to here: not beyond an unfinished head.
            if not state.pending or state.pending[0][2] >= seq:
                self._complete(state, seq, now)

    def _complete(self, state: GroupState, seq: int, now: int) -> None:
        state.completed = seq
        self._q[state.cells + _COMPLETED] = seq
        self._q[state.cells + _COMPLETED_NS] = now

    def _finish(self, record_id: int, flags: int, *, succeeded: bool) -> int:
        now = time_ns()
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
        spec = OpSpec("coalesced", "coalesced", sequence_step=0)
        key = (spec.operator, backend.name if backend else "", (), (), -1, -1, "", None)
        signature = self._signatures.get(key, spec)._replace(agreement=0)
        flags = _BATCH | _ASYNC
        if backend is None or not backend.pollable or work is None:
            flags |= _UNOBSERVED
        if kinds == _COALESCED_P2P:
            flags |= _P2P
        token = self._write(state, spec, signature, flags, -1, -1, 0)
        if not flags & _UNOBSERVED:
            state.pending.append((work, token[1], token[2], flags))

    # -- pieces ----------------------------------------------------------------------------

    def _search_group(self, args: Sequence[Any]) -> Any:
        """The group of an operator we do not know."""
        for value in args:
            if type(value) is self._script_object:
                try:
                    return self._unbox_group(value)
                except Exception:
                    continue
        return None

    def _shapes(self, value: Any) -> tuple[Shapes, Any]:
        """Shapes and dtypes of a tensor, a list or a list of lists; and the first tensor."""
        if type(value) is list and len(value) == 1:
            value = value[0]
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

    def _device_without_tensors(self, args: Sequence[Any]) -> str:
        """A barrier's device is that of its dummy tensor."""
        if args and isinstance(args[0], self._tensor):
            return str(args[0].device.type)
        return "cpu"


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
