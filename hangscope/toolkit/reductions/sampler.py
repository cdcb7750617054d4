"""Checks every Nth all-reduce of a running job, without a collective and without waiting.

The recorder's hook calls `ReductionSampler.before` and `ReductionSampler.after` around every
collective. Every Nth all-reduce of each group is sampled; since all members count the same calls,
they choose the same ones without communication. A sample is a sketch of the input, a sketch of the
output and a hash of the output's bits: a kilobyte that a background thread puts into the job's
store. The last member to do so compares all samples. No member waits for another.

It detects any bit in which members' outputs differ (and, by majority, whose), and a result that in
one of 32 blocks differs from the sum of the inputs by more than rounding. It does not detect: an
identical error on all members that is within the rounding of its block; errors other than differing
bits in all-reduces with operations other than sum and average; errors in asynchronous all-reduces
on CUDA, where nothing can be read between the collective's end and the caller's next kernel, and in
replayed CUDA graphs.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangscope.ring.run_directory import create, opened
from hangscope.toolkit.barriers.barrier import check_count
from hangscope.toolkit.reductions.compare_samples import (
    Finding,
    Sample,
    compare_samples,
    entry_of,
)

if TYPE_CHECKING:
    import torch

    from hangscope.toolkit.barriers.meeting import StoreGroup

NAMES = ("all_reduce", "allreduce_", "allreduce", "nccl:all_reduce", "gloo:all_reduce")
PENDING = 16
"""Limit on samples queued for the background thread; beyond it they are dropped, so that the job is
never slowed down."""
_STORE_TIMEOUT = timedelta(seconds=2)
"""Limit on one call of the background thread's own connection to the store."""


@dataclass(slots=True)
class Token:
    """One sampled call between `before` and `after`."""

    store_group: StoreGroup
    number: int
    op: str
    reduce_op: str
    inputs: list[torch.Tensor]
    asynchronous: bool
    taken: bool = False


class ReductionSampler:
    """Samples every ``every``-th all-reduce of each group.

    Parameters
    ----------
    every:
        1 checks every all-reduce.
    directory:
        Where ``reduction_rank{N}.jsonl`` goes; ``None`` is ``$HANGSCOPE_DIR``.
    on_finding:
        Called from the background thread with each finding.

    Raises
    ------
    ValueError
        ``every`` is below 1.
    """

    def __init__(
        self,
        every: int,
        *,
        directory: str | os.PathLike[str] | None = None,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        check_count(every, "every")
        self.every = every
        self.dropped = 0
        self.checked = 0
        self._directory = directory
        self._on_finding = on_finding
        # Keyed by the group itself: names and addresses are reused after a re-initialisation.
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._queue: queue.Queue[Sample | None] = queue.Queue(PENDING)
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._stores: dict[str, Any] = {}
        self._failed = self._ending = False

    def before(
        self,
        op_name: str,
        tensors: Sequence[torch.Tensor],
        group: Any = None,
        *,
        reduce_op: str = "sum",
        async_op: bool = True,
        number: int | None = None,
    ) -> Token | None:
        """Call before a collective; copies the input if this one is to be sampled.

        ``async_op``: whether the caller gets a Work to wait for. ``number``: the all-reduce's
        number in its group if the caller counts; all members must count alike. Never raises.
        """
        if op_name not in NAMES or self._failed or os.getpid() != self._pid:
            return None
        try:
            if number is None:
                number = self._count(group)
            if number % self.every or not _readable(tensors, async_op):
                return None
            store_group = self._store_group(group)
            if store_group is None or len(store_group.ranks) < 2:
                return None
            copies = [tensor.detach().clone() for tensor in tensors]
            op = _reduce_name(reduce_op)
            return Token(store_group, number, op_name, op, copies, async_op)
        except Exception as error:
            self._give_up(error)
            return None

    def after(
        self,
        token: Token | None,
        result_tensors: Sequence[torch.Tensor],
        work: Any = None,
        group: Any = None,
    ) -> None:
        """Call after the collective was issued; copies the result once it is available.

        Never raises. Waits for a synchronous call, as its caller is about to do anyway. The result
        of an asynchronous one is copied by its future's callback, which on the CPU runs before the
        caller's own wait returns.
        """
        if token is None or self._failed:
            return
        outputs = list(result_tensors)
        try:
            if work is None or not token.asynchronous:
                if work is not None:
                    work.wait()
                self._take(token, outputs)
            else:
                work.get_future().then(lambda future: self._on_done(token, outputs, future))
        except Exception as error:
            self._give_up(error)

    def drain(self, timeout_s: float = 5.0) -> None:
        """Wait until all samples taken so far are in the store (for tests and at exit)."""
        deadline = time.monotonic() + timeout_s
        while self._queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)

    # -- taking a sample ---------------------------------------------------------------------

    def _count(self, group: Any) -> int:
        import torch.distributed as dist

        pg = group if group is not None else dist.group.WORLD
        with self._lock:
            number = self._counts.get(pg, 0) + 1
            self._counts[pg] = number
        return number

    def _store_group(self, group: Any) -> StoreGroup | None:
        from hangscope.toolkit.barriers.store_group import is_member, is_ready, store_group_of

        if not is_ready() or not is_member(group):
            return None
        return store_group_of(group, "sampled")

    def _on_done(self, token: Token, outputs: list[torch.Tensor], future: Any) -> None:
        try:
            future.value()  # raises what the collective raised; then there is nothing to compare
        except Exception:
            return
        try:
            self._take(token, outputs)
        except Exception as error:
            self._give_up(error)

    def _take(self, token: Token, outputs: list[torch.Tensor]) -> None:
        if token.taken:
            return
        token.taken = True
        copies = [tensor.detach().clone() for tensor in outputs]
        sample = Sample(
            token.store_group, token.number, token.op, token.reduce_op, token.inputs, copies
        )
        self._start()
        try:
            self._queue.put_nowait(sample)
        except queue.Full:
            self.dropped += 1

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="hangscope-reductions", daemon=True
                )
                atexit.register(self._end)
                self._thread.start()

    def _end(self) -> None:
        """Have the thread out of the store before the interpreter goes.

        Python ends threads that want the GIL after that by unwinding them, and C++ that calls the
        store answers with ``std::terminate``: a job that was done would end with SIGABRT.
        """
        self._ending = True
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        if self._thread is not None:
            self._thread.join(2 * _STORE_TIMEOUT.total_seconds())

    def _give_up(self, error: BaseException) -> None:
        if not self._failed:
            self._failed = True
            warnings.warn(
                f"[hangscope] checking of all-reduces is off: {type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=3,
            )

    # -- background ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            sample = self._queue.get()
            try:
                if sample is None or self._ending:
                    return
                if not self._failed:
                    self._leave(sample)
            except Exception as error:  # the store is gone because the job is ending
                self._give_up(error)
            finally:
                self._queue.task_done()

    def _leave(self, sample: Sample) -> None:
        """Put this rank's entry into the store; the last member to do so compares all."""
        store_group = sample.store_group
        store = self._own_connection(store_group)
        key = f"{store_group.key}/{sample.number}"
        if not store.has_extended_api():
            raise RuntimeError("the job's store cannot append")
        store.append(f"{key}/entries", json.dumps(entry_of(sample)) + "\n")
        if store.add(f"{key}/count", 1) != len(store_group.ranks):
            return
        entries = [json.loads(line) for line in store.get(f"{key}/entries").splitlines()]
        store.delete_key(f"{key}/entries")
        store.delete_key(f"{key}/count")
        self.checked += 1
        finding = compare_samples(entries, sample)
        if finding is not None:
            self._report(finding)

    def _own_connection(self, store_group: StoreGroup) -> Any:
        """A separate connection for this thread, if the store can be cloned."""
        if store_group.incarnation not in self._stores:
            clone = getattr(store_group.store, "clone", None)
            try:
                if clone is None:
                    own = store_group.store
                else:
                    own = clone()
                    own.set_timeout(_STORE_TIMEOUT)
                self._stores[store_group.incarnation] = own
            except RuntimeError:
                self._stores[store_group.incarnation] = store_group.store
        return self._stores[store_group.incarnation]

    def _report(self, finding: Finding) -> None:
        directory = self._directory or os.environ.get("HANGSCOPE_DIR")
        if directory:
            path = Path(directory) / f"reduction_rank{finding['reported_by']}.jsonl"
            try:
                create(path.parent)
                with opened(path.parent) as folder:
                    descriptor = folder.appended_file(path.name)
                with open(descriptor, "a", encoding="utf-8") as file:
                    file.write(json.dumps(finding) + "\n")
            except OSError as error:
                warnings.warn(f"[hangscope] {path}: {error}", RuntimeWarning, stacklevel=2)
        if self._on_finding is not None:
            self._on_finding(finding)


def _readable(tensors: Sequence[torch.Tensor], async_op: bool) -> bool:
    """Whether the result can be read before the caller may change it."""
    import torch

    return all(
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.numel() > 0
        and (tensor.device.type == "cpu" or not async_op)
        and not tensor.is_meta
        for tensor in tensors
    ) and not _capturing(tensors)


def _capturing(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a CUDA graph is being captured, to which nothing may be added."""
    import torch

    return any(tensor.is_cuda for tensor in tensors) and bool(
        torch.cuda.is_current_stream_capturing()
    )


def _reduce_name(reduce_op: Any) -> str:
    text = str(reduce_op).rsplit(".", 1)[-1].lower()
    return "avg" if text in ("avg", "mean") else text
