"""Snapshots of training state in one process: everything is restored, bit for bit."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

from hangscope.toolkit.warmup.rng import snapshot_rng
from hangscope.toolkit.warmup.training import Rewindable, warmup_training


class Counting(nn.Module):
    """A module with every kind of mutable state: dropout, norms, counters, extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.calls = 0
        self.history: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.history.append(self.calls)
        self.seen = self.seen + 1  # another tensor object each time
        result: torch.Tensor = self.norm(self.dropout(self.linear(x)))
        return result

    def get_extra_state(self) -> list[int]:
        return self.history

    def set_extra_state(self, state: list[int]) -> None:
        self.history = list(state)


def test_module_goes_back_with_counters_replaced_buffers_and_extra_state() -> None:
    model = Counting()
    seen, weight = model.seen, model.linear.weight
    before = copy.deepcopy(model.state_dict())

    def step() -> None:
        model.train()
        model(torch.randn(3, 4)).sum().backward()
        with torch.no_grad():
            model.linear.weight.mul_(2)

    model.eval()
    warmup_training(step, model=model)
    assert model.calls == 0
    assert model.history == []
    assert model.seen is seen
    assert model.seen.item() == 0
    assert model.linear.weight is weight, "the same object, as optimizers know it"
    assert weight.grad is None
    assert not model.training
    after = model.state_dict()
    for name, value in before.items():
        assert torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else True, name


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.Adafactor(p),
    ],
    ids=["sgd-momentum", "adam", "adamw-tensor-lr", "adagrad", "adafactor"],
)
@pytest.mark.parametrize("fresh", [True, False])
def test_zero_grad_is_not_enough(
    make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer], fresh: bool
) -> None:
    """Momentum, schedule, scaler and random state are all restored, not only the gradients."""
    torch.manual_seed(0)
    model = Counting()
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=50, cycle_momentum=False
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    losses: list[float] = []

    def step() -> None:
        optimizer.zero_grad()
        loss = model(torch.randn(6, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        losses.append(loss.item())

    if not fresh:
        step()
    states = copy.deepcopy(optimizer.state_dict())
    schedule = copy.deepcopy(scheduler.state_dict())
    scale = copy.deepcopy(scaler.state_dict())
    size = len(optimizer.state)
    start = len(losses)
    warmup_training(
        step, model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, steps=3
    )
    warm = losses[start:]
    assert len(optimizer.state) == size
    assert same(optimizer.state_dict(), states)
    assert same(scheduler.state_dict(), schedule)
    assert same(scaler.state_dict(), scale)
    start = len(losses)
    for _ in range(3):
        step()
    assert losses[start:] == warm, "training goes on as if nothing had been"


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    return callable(a) or a == b


@pytest.mark.parametrize("anew", [True, False], ids=["made anew", "added to"])
def test_gradients_in_the_middle_of_an_accumulation_survive(anew: bool) -> None:
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None
    want = gradient.clone()

    def step() -> None:
        if anew:
            model.zero_grad(set_to_none=True)
        model(torch.ones(1, 2) * 5).sum().backward()

    warmup_training(step, model=model)
    assert model.weight.grad is gradient
    assert torch.equal(gradient, want)


def test_frozen_parameters_stay_frozen() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    warmup_training(lambda: model.bias.requires_grad_(True), model=model)
    assert not model.bias.requires_grad


def test_random_generators_of_every_kind() -> None:
    own = torch.Generator().manual_seed(1)
    numpy_own = np.random.default_rng(2)
    python_own = random.Random(3)
    legacy = np.random.RandomState(4)

    def draw() -> list[float]:
        return [
            torch.rand(()).item(),
            random.random(),
            float(np.random.rand()),
            torch.rand((), generator=own).item(),
            float(numpy_own.random()),
            python_own.random(),
            float(legacy.rand()),
        ]

    restore = snapshot_rng([own, numpy_own, python_own, legacy])
    first = draw()
    restore()
    assert draw() == first
    with pytest.raises(TypeError, match="no random generator"):
        snapshot_rng([object()])


def test_data_iterator_goes_back() -> None:
    data = Rewindable(iter(range(10)))
    assert next(data) == 0
    seen: list[int] = []
    warmup_training(lambda: seen.append(next(data)), model=nn.Linear(1, 1), data=data, steps=3)
    assert seen == [1, 2, 3]
    assert list(data) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_rewinding_twice_and_across_the_kept_items() -> None:
    data = Rewindable(range(5))
    data.mark()
    assert [next(data), next(data), next(data)] == [0, 1, 2]
    data.rewind()
    assert next(data) == 0
    data.mark()
    assert [next(data) for _ in range(3)] == [1, 2, 3]
    data.rewind()
    assert list(data) == [1, 2, 3, 4]


class Sampler:
    """Stateful data, as stateful loaders are."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def test_stateful_data_and_further_state_go_back() -> None:
    data, average = Sampler(), Sampler()

    def step() -> None:
        data.position += 1
        average.position += 7

    warmup_training(step, model=nn.Linear(1, 1), data=data, stateful=[average], steps=2)
    assert (data.position, average.position) == (0, 0)


def test_everything_goes_back_when_the_step_raises() -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    data = Rewindable(range(3))

    def step() -> None:
        next(data)
        with torch.no_grad():
            model.weight.zero_()
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        warmup_training(step, model=model, data=data)
    assert torch.equal(model.weight, before)
    assert next(data) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": object()}, "param_groups"),
        ({"scheduler": object()}, "state_dict"),
        ({"data": iter([1])}, "Rewindable"),
        ({"model": nn.LazyLinear(3)}, "lazy"),
    ],
)
def test_what_cannot_go_back_is_refused_before_anything_runs(
    options: dict[str, object], message: str
) -> None:
    ran: list[int] = []
    arguments = {"model": nn.Linear(1, 1)} | options
    with pytest.raises(TypeError, match=message):
        warmup_training(lambda: ran.append(1), **arguments)  # type: ignore[arg-type]
    assert ran == []


def test_steps_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="steps"):
        warmup_training(lambda: None, model=nn.Linear(1, 1), steps=0)
