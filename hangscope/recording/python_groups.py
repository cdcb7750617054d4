"""Process groups written in Python, which call no operator of the dispatcher.

A package may register a backend whose process group is a Python subclass of torch's
(``dist.Backend.register_backend``). Torch then calls the subclass's own methods, and the hook never
hears of it. Here those methods are wrapped in their class, once per class. A group that only hands
everything to another one is recorded beside it.

Polling such a group's Works would run the package's code on our thread, so only the job's own wait
tells their end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from sys import _getframe as getframe
from typing import Any, NamedTuple

from hangscope.recording.operations import OpSpec, blocking_flag_reader, spec_for
from hangscope.recording.patches import Patches
from hangscope.recording.recorder import Recorder, Token
from hangscope.recording.work_waits import Wait
from hangscope.ring.layout import SlotFlag

_UNOBSERVED = int(SlotFlag.UNOBSERVED)
_IN_OPTIONS = ("root_rank", "async_op", "reduce_op")
"""What a method's options tell, in the order in which it is put behind the method's arguments."""
_BASE = ("output_tensor", "input_tensor")
_LISTS = ("output_tensors", "input_tensors")
_SPLITS = ("output", "input", "output_split_sizes", "input_split_sizes")
_METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "allreduce": ("allreduce_", ("tensors",)),
    "allreduce_coalesced": ("allreduce_coalesced_", ("tensors",)),
    "broadcast": ("broadcast_", ("tensors",)),
    "reduce": ("reduce_", ("tensors",)),
    "allgather": ("allgather_", _LISTS),
    "allgather_coalesced": ("allgather_coalesced_", ("output_lists", "input_list")),
    "_allgather_base": ("_allgather_base_", _BASE),
    "all_gather_single": ("_allgather_base_", _BASE),
    "reduce_scatter": ("reduce_scatter_", _LISTS),
    "_reduce_scatter_base": ("_reduce_scatter_base_", _BASE),
    "reduce_scatter_single": ("_reduce_scatter_base_", _BASE),
    "gather": ("gather_", _LISTS),
    "scatter": ("scatter_", _LISTS),
    "alltoall": ("alltoall_", _LISTS),
    "alltoall_base": ("alltoall_base_", _SPLITS),
    "all_to_all_single": ("alltoall_base_", _SPLITS),
    "barrier": ("barrier", ()),
    "send": ("send", ("tensors", "dst", "tag")),
    "recv": ("recv_", ("tensors", "src", "tag")),
    "recv_anysource": ("recv_any_source_", ("tensors", "tag")),
}
"""Operator and arguments of each method of a process group; its options come last."""


class _Method(NamedTuple):
    """A method that is recorded."""

    spec: OpSpec
    arguments: int
    """How many it has before its options."""

    def values(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """Its arguments as the spec counts them; None if it is called in another way."""
        if len(args) < self.arguments:
            return None
        options = kwargs.get("opts", args[self.arguments] if len(args) > self.arguments else None)
        root, reduce_op = getattr(options, "rootRank", -1), getattr(options, "reduceOp", None)
        return (*args[: self.arguments], root, getattr(options, "asyncOp", True), reduce_op)


class PythonGroups:
    """Wraps the methods of groups' classes, and the ``wait`` of their Works' classes.

    Parameters
    ----------
    stand_in:
        Makes the stand-in for a ``wait``.
    recording:
        Whether this process still records.
    """

    def __init__(
        self,
        recorder: Recorder,
        patches: Patches,
        guard: Callable[[BaseException], None],
        *,
        stand_in: Callable[[Wait], Wait],
        recording: Callable[[], bool],
    ) -> None:
        import torch.distributed as dist

        self._recorder, self._patches, self._guard = recorder, patches, guard
        self._stand_in, self._recording = stand_in, recording
        self._group, self._work = dist.ProcessGroup, dist.Work
        self._manner = blocking_flag_reader()
        self._wrapped: set[tuple[type, str]] = set()
        self._inside = threading.local()

    def watch(self, process_group: Any) -> None:
        """Wrap what the group's classes define themselves, unless that has been done."""
        if type(process_group) is self._group or not isinstance(process_group, self._group):
            return
        for name, (operator, arguments) in _METHODS.items():
            spec = spec_for(operator, (*arguments, *_IN_OPTIONS))
            for owner in self._owners(type(process_group), name, self._group):
                original = vars(owner)[name]
                wrapper = self._wrapper(original, _Method(spec, len(arguments)))
                self._patches.replace(owner, name, wrapper)

    def _owners(self, kind: type, name: str, base: type) -> Iterator[type]:
        """The Python classes below ``base`` that define a function and have not been seen."""
        for owner in kind.__mro__[: kind.__mro__.index(base)]:
            if callable(vars(owner).get(name)) and (owner, name) not in self._wrapped:
                self._wrapped.add((owner, name))
                yield owner

    def _wrapper(self, original: Callable[..., Any], method: _Method) -> Callable[..., Any]:
        inside, guard = self._inside, self._guard

        @wraps(original)
        def issue(group: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "group", None) is group:  # one of its operations calls another
                return original(group, *args, **kwargs)
            token = None
            outer, inside.group = getattr(inside, "group", None), group
            try:
                try:
                    token = self._begin(group, method, args, kwargs)
                except Exception as error:
                    guard(error)
                work = original(group, *args, **kwargs)
            except BaseException:
                try:
                    if token is not None and self._recording():
                        self._recorder.raised(method.spec, token)
                except Exception as error:
                    guard(error)
                raise
            finally:
                inside.group = outer
            try:
                if token is not None and self._recording():
                    self._issued(token, work)
            except Exception as error:
                guard(error)
            return work

        return issue

    def _begin(
        self, group: Any, method: _Method, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Token | None:
        values = method.values(args, kwargs) if self._recording() else None
        if values is None:
            return None
        flags = self._manner(getframe(2)) if method.spec.p2p else 0
        return self._recorder.begin_python(method.spec, values, group, flags)

    def _issued(self, token: Token, work: Any) -> None:
        """Expect the job to wait for the Work; it may be one that is watched already."""
        completions = self._recorder.completions
        completions.unbox()
        if not isinstance(work, self._work) or id(work) in completions.watched:
            return
        for owner in self._owners(type(work), "wait", self._work):
            self._patches.replace(owner, "wait", self._stand_in(vars(owner)["wait"]))
        token[1], token[3] = work, token[3] | _UNOBSERVED
        completions.expect(token)
