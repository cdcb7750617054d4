"""A sketch of a tensor: a few numbers that suffice to tell whether a sum over ranks is right.

Every block of the tensor is multiplied by fixed signs and summed in float64. This map is linear, so
the sketch of the result must equal the sum of the inputs' sketches, up to rounding that is bounded
by the sums of absolute values. No tensor has to be sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BLOCKS = 32
"""Blocks per tensor; more blocks find smaller errors but need more space in the store."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """Signed sums and sums of absolute values, one of each per block."""

    signed: tuple[float, ...]
    absolute: tuple[float, ...]


def sketch(tensor: torch.Tensor) -> Sketch:
    """The sketch of a dense tensor; complex numbers count as pairs of real numbers."""
    import torch

    flat = tensor.detach().contiguous()
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj())
    flat = flat.reshape(-1)
    size = flat.numel()
    if not size:
        return Sketch((), ())
    blocks = min(BLOCKS, size)
    length = -(-size // blocks)
    signed: list[float] = []
    absolute: list[float] = []
    for start in range(0, size, length):
        part = flat[start : start + length].to(torch.float64)
        signed.append(float((part * _signs(part.numel(), part.device)).sum()))
        absolute.append(float(part.abs().sum()))
    return Sketch(tuple(signed), tuple(absolute))


def _signs(count: int, device: torch.device) -> torch.Tensor:
    """A fixed sequence of +1 and -1 in which no short pattern repeats (Thue-Morse)."""
    import torch

    index = torch.arange(count, device=device)
    for shift in (32, 16, 8, 4, 2, 1):
        index = index ^ (index >> shift)
    return (1 - 2 * (index & 1)).to(torch.float64)


def wrong_blocks(
    inputs: Sequence[Sketch], result: Sketch, *, unit: float, elements: int, divisor: int = 1
) -> list[int]:
    """Blocks of ``result`` that cannot be the sum of the ``inputs`` divided by ``divisor``.

    Parameters
    ----------
    inputs:
        One sketch per member.
    result:
        The sketch of a member's output.
    unit:
        Rounding unit of the dtype; 0 for integers.
    elements:
        Elements per block, for the rounding of the sketches themselves.
    divisor:
        1, or the number of members for an average.
    """
    wrong = []
    for block, got in enumerate(result.signed):
        expected = sum(part.signed[block] for part in inputs) / divisor
        scale = sum(part.absolute[block] for part in inputs) / divisor
        allowed = scale * (unit * (len(inputs) + 1) + 2.3e-16 * (elements + len(inputs)))
        difference = abs(got - expected)
        if difference > allowed or (difference != difference and expected == expected):
            wrong.append(block)
    return wrong
