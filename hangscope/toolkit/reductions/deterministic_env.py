"""NCCL's best-effort deterministic settings."""

from __future__ import annotations

import os
import warnings
from collections.abc import MutableMapping

from hangscope.toolkit.environments.variables import DETERMINISTIC_NCCL_ENV


def configure_deterministic_nccl_env(
    overwrite: bool = False, environ: MutableMapping[str, str] | None = None
) -> dict[str, str | None]:
    """Ask NCCL for one ring, one protocol and one channel.

    NCCL reads this when communicators are created, so call it before ``init_process_group`` (or
    export the same variables in the shell before torchrun; use one way or the other). It is best
    effort: it promises nothing about NVLS, other hardware or another number of ranks. For results
    that do not depend on any of these use `deterministic_all_reduce`.

    Parameters
    ----------
    overwrite:
        Replace values that differ; otherwise they are kept, with a warning for each.
    environ:
        The environment to change; ``None`` is this process's.

    Returns
    -------
    dict[str, str or None]
        The previous value of each variable, ``None`` if it was unset.
    """
    env = os.environ if environ is None else environ
    previous: dict[str, str | None] = {name: env.get(name) for name in DETERMINISTIC_NCCL_ENV}
    for name, value in DETERMINISTIC_NCCL_ENV.items():
        old = previous[name]
        if old is None or old == "" or overwrite:
            env[name] = value
        elif old != value:
            warnings.warn(
                f"{name}={old} is kept, although {value} is needed for deterministic reductions; "
                "pass overwrite=True to replace it",
                RuntimeWarning,
                stacklevel=2,
            )
    if _initialized():
        warnings.warn(
            "configure_deterministic_nccl_env was called after init_process_group: communicators "
            "that exist already keep their settings",
            RuntimeWarning,
            stacklevel=2,
        )
    return previous


def _initialized() -> bool:
    import sys

    if "torch.distributed" not in sys.modules:
        return False
    from hangscope.toolkit.barriers.store_group import is_ready

    return is_ready()
