"""Saves everything that a training step changes, and restores it bit for bit.

Restoring writes into the existing tensors, so parameters remain the objects that optimizers, DDP
buckets and CUDA graphs refer to. What did not exist before (fresh optimizer state, gradients) is
removed again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hangscope.toolkit.tensors import local_part
from hangscope.toolkit.warmup.rng import snapshot_rng

if TYPE_CHECKING:
    import torch
    from torch import nn

Restore = Callable[[], None]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def snapshot(
    models: Iterable[nn.Module],
    optimizers: Iterable[Any] = (),
    stateful: Iterable[Any] = (),
    scalers: Iterable[Any] = (),
    generators: Sequence[Any] = (),
) -> Restore:
    """Save everything now; the returned function restores it.

    Parameters
    ----------
    models:
        Modules, wrapped (DDP, FSDP) or not.
    optimizers:
        Anything with ``param_groups`` and ``state``.
    stateful:
        Anything with ``state_dict`` and ``load_state_dict``: schedulers, samplers, stateful data
        loaders, moving averages.
    scalers:
        Gradient scalers.
    generators:
        The program's own random generators, besides the global ones.

    Raises
    ------
    TypeError
        Something has no state that can be saved and restored; nothing was changed.
    """
    models = list(models)
    for model in models:
        _reshard(model)  # gathered parameters are temporary memory; only shards can be saved
    seen: dict[int, torch.Tensor] = {}
    parts: list[Restore] = [
        *[_module(model, seen) for model in models],
        *[_optimizer(optimizer, seen) for optimizer in optimizers],
        *[_stateful(item) for item in stateful],
        *[_attributes(scaler) for scaler in scalers],
        snapshot_rng(generators),
    ]

    def restore() -> None:
        import torch

        for model in models:
            _reshard(model)
        with torch.no_grad():
            for part in parts:
                part()
        torch.clear_autocast_cache()

    return restore


def _tensor(tensor: torch.Tensor) -> Restore:
    """Data, gradient and ``requires_grad`` of one tensor, restored in place."""
    part = local_part(tensor)
    data = part.clone()
    gradient = tensor.grad if tensor.is_leaf else None
    gradient_data = None if gradient is None else local_part(gradient).clone()
    wants = tensor.requires_grad

    def restore() -> None:
        local_part(tensor).copy_(data)
        if tensor.is_leaf:
            tensor.requires_grad_(wants)
            if gradient is not None and gradient_data is not None:
                local_part(gradient).copy_(gradient_data)
            tensor.grad = gradient
        # A gradient kept as a view into a DDP bucket is the same object before and after.

    return restore


def _module(model: nn.Module, seen: dict[int, torch.Tensor]) -> Restore:
    from torch.nn.parameter import is_lazy

    parts: list[Restore] = []
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None:
                    continue
                if is_lazy(tensor):
                    raise TypeError(
                        f"parameter {name!r} of {type(module).__name__} is not initialised yet "
                        "(lazy module): run one forward pass first"
                    )
                if id(tensor) not in seen:
                    seen[id(tensor)] = tensor  # keeps it alive, so its id is not reused
                    parts.append(_tensor(tensor))
        parts.append(_module_fields(module))

    def restore() -> None:
        for part in reversed(parts):
            part()

    return restore


def _module_fields(module: nn.Module) -> Restore:
    """Which tensors belong where, the training flag, counters, and extra state."""
    from torch import nn

    parameters, buffers = dict(module._parameters), dict(module._buffers)
    training = module.training
    # Only counters of the user's own modules; those of torch's wrappers must match C++ state.
    own = any(
        not base.__module__.startswith(("torch.", "builtins", "typing"))
        for base in type(module).__mro__
    )
    counters = {
        name: value
        for name, value in vars(module).items()
        if own and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    extra = None
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        extra = (copy.deepcopy(module.get_extra_state()),)

    def restore() -> None:
        module._parameters.clear()
        module._parameters.update(parameters)
        module._buffers.clear()
        module._buffers.update(buffers)
        module.training = training
        vars(module).update(counters)
        if extra is not None:
            module.set_extra_state(copy.deepcopy(extra[0]))

    return restore


def _optimizer(optimizer: Any, seen: dict[int, torch.Tensor]) -> Restore:
    """State, groups and plain attributes; without ``load_state_dict``, which casts and copies."""
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "state"):
        raise TypeError(
            f"{type(optimizer).__name__} has no param_groups and state: pass the optimizer itself"
        )
    masters = _masters(optimizer, seen)
    state = _entries(optimizer.state)
    groups = [
        {name: _value(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    attributes = {n: v for n, v in vars(optimizer).items() if isinstance(v, _PLAIN)}
    known = set(vars(optimizer))

    def restore() -> None:
        for part in (*masters, state):
            part()
        for group, saved in zip(optimizer.param_groups, groups, strict=True):
            for name in [n for n in group if n != "params" and n not in saved]:
                del group[name]
            group.update({name: rebuild() for name, rebuild in saved.items()})
        for name in [n for n, v in vars(optimizer).items() if isinstance(v, _PLAIN)]:
            if name not in known:
                delattr(optimizer, name)
        vars(optimizer).update(attributes)

    return restore


def _masters(optimizer: Any, seen: dict[int, torch.Tensor]) -> list[Restore]:
    """The optimizer's tensors that belong to no module, such as fp32 master weights."""
    found: list[Restore] = []
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if id(parameter) not in seen:
            seen[id(parameter)] = parameter
            found.append(_tensor(parameter))
    return found


def _entries(state: dict[Any, Any]) -> Restore:
    """All entries of a dictionary; entries added later are removed."""
    before = {key: _value(value) for key, value in state.items()}

    def restore() -> None:
        for key in [k for k in state if k not in before]:
            del state[key]
        for key, rebuild in before.items():
            state[key] = rebuild()

    return restore


def _attributes(thing: Any) -> Restore:
    """All attributes of an object whose ``state_dict`` is incomplete (gradient scalers)."""
    before = {name: _value(value) for name, value in vars(thing).items()}

    def restore() -> None:
        for name in [n for n in vars(thing) if n not in before]:
            delattr(thing, name)
        for name, rebuild in before.items():
            setattr(thing, name, rebuild())

    return restore


def _stateful(thing: Any) -> Restore:
    if not callable(getattr(thing, "state_dict", None)) or not callable(
        getattr(thing, "load_state_dict", None)
    ):
        raise TypeError(
            f"{type(thing).__name__} has no state_dict and load_state_dict, so it cannot be put "
            "back; wrap iterators in hangscope.Rewindable"
        )
    state = copy.deepcopy(thing.state_dict())

    def restore() -> None:
        thing.load_state_dict(copy.deepcopy(state))

    return restore


def _value(value: Any) -> Callable[[], Any]:
    """Save a value; the result returns it, as the same object if possible."""
    import torch

    if isinstance(value, torch.Tensor):
        data = local_part(value).clone()

        def tensor() -> Any:
            with torch.no_grad():
                local_part(value).copy_(data)
            return value

        return tensor
    if isinstance(value, dict):
        items = {key: _value(item) for key, item in value.items()}

        def mapping() -> Any:
            value.clear()
            value.update({key: rebuild() for key, rebuild in items.items()})
            return value

        return mapping
    if isinstance(value, list):
        elements = [_value(item) for item in value]

        def listing() -> Any:
            value[:] = [rebuild() for rebuild in elements]
            return value

        return listing
    if type(value) is tuple:
        members = tuple(_value(item) for item in value)
        return lambda: tuple(rebuild() for rebuild in members)
    if isinstance(value, _PLAIN) or callable(value):
        return lambda: value
    try:
        saved = copy.deepcopy(value)
    except Exception:  # a lock or a handle: only the object itself can be kept
        return lambda: value
    return lambda: copy.deepcopy(saved)


def _reshard(model: nn.Module) -> None:
    """Drop gathered parameters, or FSDP would go on computing with those changed by warm-up."""
    for module in _modules(model):
        if hasattr(module, "_get_fsdp_state") and hasattr(module, "reshard"):  # FSDP2
            module.reshard()
        handle: Any = getattr(module, "_handle", None)
        fsdp1 = type(module).__name__ == "FullyShardedDataParallel" and handle is not None
        if not fsdp1 or not handle.uses_sharded_strategy:
            continue
        ran = hasattr(handle.flat_param, "_full_param_padded")  # else it was never gathered
        if ran and not handle.needs_unshard():
            handle.reshard(True)
            handle.post_reshard()


def _modules(model: nn.Module) -> Iterator[Any]:
    yield from model.modules()
