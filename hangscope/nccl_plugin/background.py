"""Builds the plugin beside a job that is starting, if it was never built; never in its way."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hangscope.nccl_plugin.build import PluginBuildError, ensure_plugin

SWITCH = "HANGSCOPE_NCCL_PLUGIN"
_OFF = frozenset({"0", "off", "no", "false"})


def prepare_plugin(environ: Mapping[str, str] | None = None) -> None:
    """Build the plugin unless it is there or switched off; silent where it cannot be built.

    Without it everything works as on a machine without NCCL. ``hangscope compile`` says why it
    cannot be built.
    """
    environ = os.environ if environ is None else environ
    if environ.get(SWITCH, "").strip().lower() in _OFF:
        return
    try:
        ensure_plugin()
    except PluginBuildError:
        pass
