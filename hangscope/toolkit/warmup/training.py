"""Runs training steps only for their side effects on caches and communicators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hangscope.toolkit.barriers.agreement import REFUSED, agree, compare, views_in
from hangscope.toolkit.barriers.barrier import check_count, check_timeout
from hangscope.toolkit.barriers.store_group import is_member, is_ready, store_group_of
from hangscope.toolkit.warmup.communicators import WarmupError
from hangscope.toolkit.warmup.snapshot import snapshot

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn

T = TypeVar("T")
_MOST_SAID = 300
"""Characters of a failure that are sent to the other ranks."""


class Rewindable(Generic[T]):
    """An iterator that can go back to a mark: ``data = Rewindable(loader)``.

    Items taken after `mark` are kept and returned again after `rewind`; then the underlying
    iterator continues. Without a mark nothing is kept.
    """

    def __init__(self, source: Iterable[T]) -> None:
        self._iterator = iter(source)
        self._again: list[T] = []
        self._taken: list[T] | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        item = self._again.pop(0) if self._again else next(self._iterator)
        if self._taken is not None:
            self._taken.append(item)
        return item

    def mark(self) -> None:
        """Set the mark here."""
        self._taken = []

    def rewind(self) -> None:
        """Go back to the mark and forget it."""
        self._again = [*(self._taken or ()), *self._again]
        self._taken = None


@dataclass(frozen=True, slots=True)
class TrainingWarmup:
    """What `warmup_training` did. ``results`` is what each step returned."""

    steps: int
    elapsed_s: float
    results: tuple[Any, ...] = ()


def warmup_training(
    step: Callable[[], Any],
    *,
    model: nn.Module | Iterable[nn.Module],
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    data: Any = None,
    stateful: Iterable[Any] = (),
    generators: Iterable[Any] = (),
    steps: int = 1,
    timeout: float = 600.0,
    group: dist.ProcessGroup | None = None,
) -> TrainingWarmup:
    """Run ``step`` a few times and leave no trace of it.

    Weights, buffers, gradients, optimizer state (fresh state is removed again), hyperparameters,
    schedulers, the gradient scaler, all random generators and the data iterator are restored bit
    for bit, even if ``step`` raises. Works for plain, DDP and FSDP modules. Meanwhile it needs
    memory for a copy of weights and optimizer state.

    Parameters
    ----------
    step:
        One whole training step, as in training.
    model:
        The module or modules that ``step`` changes.
    optimizer:
        The optimizer, or several in a list.
    scheduler:
        The scheduler, or several in a list.
    scaler:
        The gradient scaler.
    data:
        Where ``step`` takes batches from, if it does: a `Rewindable`, or something with
        ``state_dict`` and ``load_state_dict``.
    stateful:
        Other objects with ``state_dict`` and ``load_state_dict`` that ``step`` changes.
    generators:
        The program's own random generators.
    steps:
        How often to run ``step``.
    timeout:
        Seconds that ranks wait for each other before and after; a collective inside ``step`` is
        bounded by its process group's own timeout.
    group:
        The ranks that warm up together; ``None`` is the default group.

    Raises
    ------
    WarmupError
        ``step`` failed on another rank; names it.
    Exception
        Whatever ``step`` raised here.
    TypeError
        Something cannot be restored; nothing was run.
    ValueError
        ``steps`` is below 1.
    """
    check_timeout(timeout)
    check_count(steps, "steps")
    rewindable = data if isinstance(data, Rewindable) else None
    extra = [*_several(scheduler), *stateful]
    if data is not None and rewindable is None:
        extra.append(_with_state(data))
    together = is_ready() and is_member(group)
    store_group = store_group_of(group, "training") if together else None
    say = f"{steps} steps"
    try:
        restore = snapshot(
            _several(model), _several(optimizer), extra, _several(scaler), list(generators)
        )
    except TypeError as error:
        say = f"{REFUSED}{error}"
        raise
    finally:
        # No rank enters a collective before all have arrived with the same number of steps.
        if store_group is not None:
            agree(store_group, say, timeout_s=timeout, what="training warm-up")
    began = time.monotonic()
    results, failure = _run(step, steps, restore, rewindable)
    elapsed = time.monotonic() - began
    if store_group is not None:
        _compare_results(store_group, failure, timeout)
    if failure is not None:
        raise failure
    return TrainingWarmup(steps, elapsed, tuple(results))


def _with_state(data: Any) -> Any:
    """The source of batches, if its state can be restored."""
    if not hasattr(data, "load_state_dict"):
        raise TypeError(
            f"data is a {type(data).__name__}, which cannot be put back after warm-up: wrap it "
            "once, data = hangscope.Rewindable(loader), and draw from that in training too"
        )
    return data


def _run(
    step: Callable[[], Any],
    steps: int,
    restore: Callable[[], None],
    rewindable: Rewindable[Any] | None,
) -> tuple[list[Any], Exception | None]:
    """Run the steps and restore everything; returns their results and the exception, if any."""
    if rewindable is not None:
        rewindable.mark()
    results: list[Any] = []
    try:
        for _ in range(steps):
            results.append(step())  # noqa: PERF401 - what was done before a failure counts
    except Exception as error:
        return results, error
    finally:
        restore()
        if rewindable is not None:
            rewindable.rewind()
    return results, None


def _compare_results(store_group: Any, failure: Exception | None, timeout: float) -> None:
    """Tell all ranks who failed; a rank that failed itself raises its own, more useful error."""
    text = "" if failure is None else f"{type(failure).__name__}: {failure}"[:_MOST_SAID]
    try:
        said = compare(store_group, text, timeout_s=timeout, what="training warm-up: result")
    except Exception:
        if failure is None:
            raise
        return
    said.pop("", None)
    if said and failure is None:
        failing = sorted(rank for side in said.values() for rank in side)
        raise WarmupError(
            f"training warm-up failed on {views_in(said)}",
            store_group.label,
            store_group.ranks,
            failing,
        )


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
