"""Replaces attributes of other modules, and puts them back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Patches:
    """Monkey patches of other modules' attributes, which can be undone."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute, remembering the old one."""
        self._replaced.append((owner, name, getattr(owner, name), value))
        setattr(owner, name, value)

    def replace_function(self, name: str, wrap: Callable[[Any], Any]) -> None:
        """Wrap a function of ``distributed_c10d`` wherever ``torch.distributed`` imported it."""
        home = sys.modules["torch.distributed.distributed_c10d"]
        original = getattr(home, name, None)
        if original is None:
            return
        wrapper = wrap(original)
        for module_name, module in list(sys.modules.items()):
            if (
                module_name.startswith("torch.distributed")
                and getattr(module, "__dict__", {}).get(name) is original
            ):
                self.replace(module, name, wrapper)

    def undo(self) -> None:
        """Restore every attribute that nobody else has replaced since."""
        for owner, name, old, new in reversed(self._replaced):
            if getattr(owner, name, None) is new:
                setattr(owner, name, old)
        self._replaced.clear()
