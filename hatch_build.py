"""Builds the profiler plugin for NCCL into a wheel, where there is a C compiler; never required."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PluginBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds ``hangscope/nccl_plugin/built/*.so`` to a wheel for Linux."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it; a failure leaves a wheel without it, which builds it where it is used."""
        if version == "editable" or sys.platform != "linux":
            return
        sys.path.insert(0, self.root)
        try:
            from hangscope.nccl_plugin.build import build_plugin

            built = build_plugin(Path(self.root, "hangscope", "nccl_plugin", "built"))
        except Exception as error:
            self.app.display_warning(f"without the plugin for NCCL: {error}")
            return
        finally:
            sys.path.remove(self.root)
        inside = f"hangscope/nccl_plugin/built/{built.name}"
        build_data["force_include"][str(built)] = inside
        build_data["pure_python"] = False
        # Of the compiler's processor: CC=aarch64-linux-gnu-gcc makes a wheel for that one.
        build_data["tag"] = f"py3-none-linux_{built.stem.partition('_nccl_')[2].partition('_')[2]}"
