"""Options for what reading a job may cost, shared by the commands that read one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from hangscope.cli.types import Number, Seconds

if TYPE_CHECKING:
    from hangscope.trace.loading.budget import Budget

_F = TypeVar("_F", bound=Callable[..., Any])


def budget_options(command: _F) -> _F:
    """Give a command the options; it is called with their outcome as ``budget``."""

    @click.option(
        "--max-memory",
        type=Number(0.01, 1e5),
        metavar="GIB",
        help="Leave out files that need more memory; by default half of what is free.",
    )
    @click.option(
        "--max-seconds",
        type=Seconds(0.1, 1e6),
        metavar="SECONDS",
        help="Leave out files that are not begun after so long; by default 600.",
    )
    @click.option(
        "--max-unpacked",
        type=Number(0.001, 1e5),
        metavar="GIB",
        help="Unpack or download no more; by default 8, and half of what is free.",
    )
    @functools.wraps(command)
    def with_budget(
        *arguments: Any,
        max_memory: float | None,
        max_seconds: float | None,
        max_unpacked: float | None,
        **options: Any,
    ) -> Any:
        return command(*arguments, budget=_budget(max_memory, max_seconds, max_unpacked), **options)

    return with_budget  # type: ignore[return-value]


def _budget(memory: float | None, seconds: float | None, unpacked: float | None) -> Budget:
    from hangscope.trace.loading.budget import default_budget

    return default_budget(memory, seconds, unpacked)
