"""The part of a record that follows from the operator, its group and its arguments alone.

A training loop repeats its shapes. For operators with one tensor in and one out (those of DDP and
FSDP), the plan that `Planner` works out for a call is cached under a key that is much cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hangscope.recording.groups import GroupState
from hangscope.recording.operations import OpSpec
from hangscope.recording.shapes import NOT_REAL, shape_reader
from hangscope.recording.signatures import SignatureInterner, SignatureKey
from hangscope.ring.layout import SlotFlag

Plan = tuple[int, int, int, int, int, int, int, int, int, bool, SignatureKey]
"""(flags, step of the collective sequence number, root or tag, peer, timeout in ms; the signature's
id, the 64-bit hash of what members must agree on, element counts in and out; whether the operation
runs on CUDA, whose stream may be capturing; the signature's key). A plain tuple for speed, as every
call unpacks one."""
PlanKey = tuple[Any, ...]

_MAX_TAG = 0x7FFF_FFFF
_P2P = int(SlotFlag.P2P)
_ASYNC = int(SlotFlag.ASYNC)
_UNOBSERVED = int(SlotFlag.UNOBSERVED)


def _steps_of_gloo(spec: OpSpec, args: tuple[Any, ...], state: GroupState) -> int:
    """How many operations Gloo splits this one into, and counts."""
    if spec.gloo_counts == "one":
        return spec.sequence_step
    return len(state.ranks) if spec.gloo_counts == "members" else len(args[spec.inputs])


class Planner:
    """Makes plans, and the keys under which they are cached."""

    def __init__(self, signatures: SignatureInterner) -> None:
        import torch

        self._signatures = signatures
        self._shapes = shape_reader()
        self._tensor = torch.Tensor
        self._plain = frozenset({torch.Tensor, torch.nn.Parameter})
        self._device_index = -1

    def device_index(self) -> int:
        """Torch's number of the device of the first operation on one; -1 before that."""
        return self._device_index

    def key_reader(self, spec: OpSpec) -> Callable[[tuple[Any, ...], int], PlanKey | None]:
        """Make a function that computes a call's key, or None if its plan must not be cached.

        It takes the operator's arguments and the group's index in the ring. The key holds
        everything that `plan` depends on.
        """
        inputs_at, outputs_at, scalars_at = spec.inputs, spec.outputs, spec.scalars
        plain = self._plain

        def no_key(args: tuple[Any, ...], group: int) -> PlanKey | None:
            return None

        def key_in_place(args: tuple[Any, ...], group: int) -> PlanKey | None:
            value = args[inputs_at]
            if type(value) is list and len(value) == 1:
                value = value[0]
            if type(value) not in plain:
                return None
            return (
                group, value.shape, value.dtype, value.is_cpu or value.device.type,
                args[scalars_at:],
            )  # fmt: skip

        def key_of_two(args: tuple[Any, ...], group: int) -> PlanKey | None:
            value, result = args[inputs_at], args[outputs_at]
            if type(value) not in plain or type(result) not in plain:
                return None
            return (
                group, value.shape, value.dtype, value.is_cpu or value.device.type,
                args[scalars_at:], result.shape, result.dtype,
            )  # fmt: skip

        if scalars_at < 0 or inputs_at < 0 or outputs_at < 0:
            return no_key
        return key_in_place if inputs_at == outputs_at else key_of_two

    def plan(
        self,
        spec: OpSpec,
        args: tuple[Any, ...],
        state: GroupState,
        process_group: Any,
        reduce_op: int = -1,
    ) -> Plan | None:
        """The plan of a call; None if the call is not to be recorded.

        ``reduce_op``: its number, -1 if that is not known yet.
        """
        inputs, outputs, device = self._tensors(spec, args)
        if device is None:
            device = self._device_without_tensors(args)
        elif device == NOT_REAL:
            return None
        if device == "cuda" and self._device_index < 0:
            self._device_index = self._index_among(args)
        backend = state.backends.get(device) or state.backend_for(process_group, device)
        count = len(args)
        root = peer = tag = -1
        peers = ""
        splits = None
        flags = backend.flags
        if spec.root >= 0:
            root = state.global_rank(args[spec.root])
        if spec.p2p:
            flags |= _P2P
            other = args[spec.peer] if spec.peer >= 0 else -1
            peer = state.global_rank(other)
            peers = state.pair(spec.name == "send", other)
            tag = int(args[spec.tag]) & _MAX_TAG if 0 <= spec.tag < count else 0
        elif spec.is_async < 0 or count <= spec.is_async or args[spec.is_async]:
            flags |= _ASYNC  # the schema's default is True
        if spec.input_splits >= 0:
            splits = (tuple(args[spec.output_splits]), tuple(args[spec.input_splits]))
        timeout_ms = args[spec.timeout] if 0 <= spec.timeout < count else -1
        if timeout_ms < 0:
            timeout_ms = backend.timeout_ms
        key = (spec.operator, backend.name, inputs, outputs, reduce_op, root, peers, splits)
        signature = self._signatures.get(key, spec)
        step = spec.sequence_step
        if spec.gloo_counts and backend.name == "gloo":
            step = _steps_of_gloo(spec, args, state)
            flags |= _UNOBSERVED  # completes only in the job's own ``wait``, so polling is useless
        place = tag if spec.p2p else root  # the slot has one field for both
        return (flags, step, place, peer, timeout_ms, *signature, device == "cuda", key)

    def _tensors(self, spec: OpSpec, args: tuple[Any, ...]) -> tuple[Any, Any, str | None]:
        """Shapes and dtypes of inputs and outputs, and the device type (None without tensors)."""
        inputs, device = self._shapes(args[spec.inputs]) if spec.inputs >= 0 else ((), None)
        if spec.outputs == spec.inputs:
            return inputs, inputs, device
        if spec.outputs < 0:
            return inputs, (), device
        outputs, output_device = self._shapes(args[spec.outputs])
        return inputs, outputs, device or output_device

    def _index_among(self, args: tuple[Any, ...]) -> int:
        """The number of the device of the first tensor among arguments; -1 without any."""
        for value in args:
            while isinstance(value, list) and value:
                value = value[0]
            if isinstance(value, self._tensor) and value.device.index is not None:
                return int(value.device.index)
        return -1

    def shapes(self, tensors: list[Any]) -> Any:
        """Shapes and dtypes of a list of tensors."""
        return self._shapes(tensors)[0]

    def _device_without_tensors(self, args: tuple[Any, ...]) -> str:
        """The device of an operator without tensors: that of a barrier's dummy tensor."""
        if args and isinstance(args[0], self._tensor):
            return str(args[0].device.type)
        return "cpu"
