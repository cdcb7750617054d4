"""Has NCCL load the profiler plugin that tells what the devices do.

NCCL reads the environment when it makes a process's first communicator, which is later than the
start of recording. A plugin that another process is still building at that time is found, too, if
it is ready by then; NCCL goes on without one that is not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from pathlib import Path

from hangscope.nccl_plugin.place import built_plugin, file_name, places
from hangscope.ring.device_layout import PATH_VARIABLE, device_path
from hangscope.ring.trusted_files import UntrustedError, is_trusted

PLUGIN_VARIABLE = "NCCL_PROFILER_PLUGIN"
_OURS = "libhangscope_nccl_"


def switch_on(
    environ: MutableMapping[str, str], ring: Path, pid: int, say: Callable[[str], None]
) -> None:
    """Set the variables that make NCCL load the plugin, unless the user has chosen another one.

    Parameters
    ----------
    environ:
        Of this process; NCCL reads it.
    ring:
        This rank's ring; the device ring goes beside it.
    pid:
        Of this process. Children inherit the variables, but must not write the file.
    say:
        Called with one line for the user if the plugin is not used.
    """
    given = environ.get(PLUGIN_VARIABLE, "")
    if given and not Path(given).name.startswith(_OURS):
        say(f"{PLUGIN_VARIABLE}={given} is kept, so NCCL tells HangScope nothing")
        return
    try:
        plugin = built_plugin() or _in_the_making()
    except UntrustedError as error:
        say(f"NCCL's plugin is not loaded: {error}; run hangscope compile, or set the rights")
        return
    if plugin is None:
        return
    environ[PLUGIN_VARIABLE] = str(plugin)
    environ[PATH_VARIABLE] = f"{pid}:{device_path(ring.resolve())}"


def switch_off(environ: MutableMapping[str, str]) -> None:
    """Undo `switch_on`."""
    if environ.pop(PATH_VARIABLE, None) is not None:
        environ.pop(PLUGIN_VARIABLE, None)


def _in_the_making() -> Path | None:
    """Where the node's monitor puts the plugin that it builds at its start."""
    fitting = (place for place in places() if _may_be_built_in(place))
    return next((place / file_name() for place in fitting), None)


def _may_be_built_in(place: Path) -> bool:
    present = next(one for one in (place, *place.parents) if one.exists())
    return os.access(present, os.W_OK) and is_trusted(present)
