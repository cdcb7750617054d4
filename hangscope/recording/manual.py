"""``hangscope.record``: operations that bypass the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hangscope.recording.groups import DeviceBackend, GroupState
from hangscope.recording.operations import OpSpec
from hangscope.recording.recorder import Recorder, Token


class ManualToken(NamedTuple):
    """An operation between `ManualRecorder.begin` and ``end``."""

    token: Token


class ManualRecorder:
    """Records operations named by the caller."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._states: dict[tuple[str, tuple[int, ...]], GroupState] = {}

    def begin(
        self, operation: str, tensors: Any, group: Any, ranks: Sequence[int] | None, desc: str
    ) -> ManualToken:
        """Record an operation as issued."""
        backend, _, name = operation.rpartition(":")
        state = self._state(backend or "custom", group, ranks, desc)
        items = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        return ManualToken(
            self._recorder.begin_manual(
                state,
                OpSpec(name, name),
                DeviceBackend(backend or "custom", False, 0),
                [item for item in items if hasattr(item, "shape")],
            )
        )

    def end(self, token: ManualToken, *, succeeded: bool) -> None:
        """The block is over."""
        self._recorder.end_manual(token.token, succeeded=succeeded)

    def _state(
        self, backend: str, group: Any, ranks: Sequence[int] | None, desc: str
    ) -> GroupState:
        if ranks is None and group is not None and not isinstance(group, str):
            import torch.distributed as dist

            ranks = dist.get_process_group_ranks(group)
            label = f"{backend}/{group.group_name}"
        else:
            label = group if isinstance(group, str) else f"{backend}/default"
        if ranks is None:
            ranks = range(self._recorder.world()[1])
        key = (label, tuple(int(rank) for rank in ranks))
        state = self._states.get(key)
        if state is None:
            rank = self._recorder.world()[0]
            members = list(key[1])
            group_rank = members.index(rank) if rank in members else -1
            ring = self._recorder.ring
            index = ring.add_group(label, desc, members, backend, 0, group_rank, observable=True)
            state = self._states[key] = GroupState(
                ring, index, label, members, group_rank, recorded=True
            )
        return state
