"""``HANGSCOPE_CHECK_REDUCE=N``: passes every Nth all-reduce to the toolkit's sampler as well.

A layer around the recorder that exists only if asked for, so it costs other jobs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hangscope.recording.hook import Listener
from hangscope.recording.operations import OpSpec

_NAMES = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")


class ReductionChecks:
    """A listener between the hook and the recorder.

    Parameters
    ----------
    recorder:
        The listener that gets every operator.
    sampler:
        A `hangscope.toolkit.reductions.sampler.ReductionSampler`, or anything with its ``before``
        and ``after``, which never raise.
    """

    def __init__(self, recorder: Listener, sampler: Any) -> None:
        import torch.distributed as dist

        self._recorder = recorder
        self._sampler = sampler
        self._samples: dict[int, tuple[Any, Any, Any]] = {}
        self._unbox_group = dist.ProcessGroup.unbox
        self._unbox_work = dist.Work.unbox

    def beginner(self, spec: OpSpec) -> Callable[..., Any]:
        """The recorder's function, preceded by sampling the inputs of an all-reduce."""
        begin: Callable[..., Any] = self._recorder.beginner(spec)
        if spec.name != "all_reduce":
            return begin
        inputs, group_at, reduce_at, async_at = (
            spec.inputs, spec.group, spec.reduce_op, spec.is_async,
        )  # fmt: skip

        def begin_checked(args: tuple[Any, ...]) -> Any:
            token = begin(args, 3)
            if token is None:
                return None
            group = self._unbox_group(args[group_at])
            number = args[reduce_at].op()
            sample = self._sampler.before(
                "all_reduce",
                args[inputs],
                group,
                reduce_op=_NAMES[number] if 0 <= number < len(_NAMES) else "unknown",
                async_op=len(args) <= async_at or bool(args[async_at]),
            )
            if sample is not None:
                self._samples[token[0]] = (sample, args[inputs], group)
            return token

        return begin_checked

    def issuer(self, spec: OpSpec) -> Callable[[Any, Any], Any]:
        """The recorder's function; also lets the sampler read a result once it is available."""
        issued = self._recorder.issuer(spec)
        if spec.name != "all_reduce":
            return issued

        def issued_checked(token: Any, result: Any) -> None:
            issued(token, result)
            found = self._samples.pop(token[0], None)
            if found is not None:
                sample, outputs, group = found
                work = result[-1] if type(result) is tuple else result
                self._sampler.after(
                    sample, outputs, None if work is None else self._unbox_work(work), group
                )

        return issued_checked

    def raised(self, spec: OpSpec, token: Any) -> None:
        """The operator raised: there is nothing to compare."""
        self._samples.pop(token[0], None)
        self._recorder.raised(spec, token)
