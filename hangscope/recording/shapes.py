"""Shapes, dtypes and device of an operator's tensors: a tensor, a list, or a list of lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Shapes = tuple[tuple[tuple[int, ...], Any], ...]
"""((shape, torch dtype), ...) of several tensors."""
NOT_REAL = "meta"
"""Device of placeholder tensors while a compiler traces; such operations are not recorded."""
_TRACED = frozenset({"FakeTensor", "FunctionalTensor"})


def shape_reader() -> Callable[[Any], tuple[Shapes, str | None]]:
    """Make a function that reads shapes and device type; the device is None without tensors."""
    import torch

    plain = frozenset({torch.Tensor, torch.nn.Parameter})
    tensor = torch.Tensor

    def device_of(value: Any) -> str:
        if type(value) not in plain and type(value).__name__ in _TRACED:
            return NOT_REAL
        return "cpu" if value.is_cpu else str(value.device.type)

    def read(value: Any) -> tuple[Shapes, str | None]:
        if type(value) is list and len(value) == 1:
            value = value[0]
        if type(value) in plain:
            return (
                ((value.shape, value.dtype),),
                "cpu" if value.is_cpu else value.device.type,
            )
        if isinstance(value, tensor):
            # A tensor subclass, whose own hooks must not run.
            with torch._C.DisableTorchFunction():
                return ((value.shape, value.dtype),), device_of(value)
        shapes: list[tuple[tuple[int, ...], Any]] = []
        device = None
        for item in value:
            for one in (item,) if isinstance(item, tensor) else item:
                if type(one) in plain:
                    shapes.append((one.shape, one.dtype))
                    device = device or device_of(one)
                else:
                    with torch._C.DisableTorchFunction():
                        shapes.append((one.shape, one.dtype))
                        device = device or device_of(one)
        return tuple(shapes), device

    return read
