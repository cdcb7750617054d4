"""What a probe says: sentences, some about one device, some that explain a hang by themselves."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from hangscope.trace import clean

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?![0-9a-f])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sign:
    """Something abnormal about this node."""

    text: str
    device: str = ""
    """The PCI address of the device it is about; empty if it is about none, or does not say."""
    ago_s: float | None = None
    """For an error after which a device does no more work: how long ago it was. Else None."""


def address_in(text: str) -> str:
    """The first PCI address in a text as ``0000:1b:00``; empty without one."""
    found = _ADDRESS.search(text)
    if found is None:
        return ""
    domain, bus, device = (int(part, 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def to_json(signs: list[Sign]) -> str:
    """The signs as a probe prints them."""
    return json.dumps([[sign.text, sign.device, sign.ago_s] for sign in signs])


def from_json(output: bytes) -> list[Sign]:
    """What a probe has printed; empty for anything else."""
    try:
        said = json.loads(output)
    except (ValueError, RecursionError):
        return []
    return [sign for one in said if (sign := _sign(one))] if isinstance(said, list) else []


def _sign(said: object) -> Sign | None:
    match said:
        case [str(text), str(device), ago_s] if ago_s is None or isinstance(ago_s, float):
            return Sign(clean.prose(text), address_in(device), ago_s)
    return None
