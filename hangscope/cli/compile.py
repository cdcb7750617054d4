"""``hangscope compile``: make recording cheaper with a C++ compiler."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import rich_click as click

from hangscope.cli.console import say
from hangscope.cli.errors import UserError, cannot_write
from hangscope.nccl_plugin.build import PluginBuildError, best_directory, build_plugin
from hangscope.recording.compiled.build import BuildError, build
from hangscope.recording.compiled.load import BESIDE_THE_PACKAGE, places
from hangscope.report.safe_console import SafeConsole
from hangscope.ring.trusted_files import cache_directory


@click.command("compile")
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to put it. By default beside the installed package, so that all users of an image "
    "share it, or else into the user's cache directory.",
)
def command(into: Path | None) -> None:
    """Compile the recorder's hot path for this Python and this torch, and the plugin for NCCL.

    Recording then costs a microsecond or two per collective instead of ten to twenty. It needs g++
    or clang++, Python's headers and half a minute; run it once where a training image is built,
    with the Python that trains. After torch has been upgraded, run it again: until then recording
    falls back to Python, which records the same.

    HANGSCOPE_COMPILED=0 switches the compiled part off, HANGSCOPE_NCCL_PLUGIN=0 the plugin.
    """
    _plugin(into)
    began_s = time.monotonic()
    with SafeConsole(stderr=True).status("compiling, which takes half a minute"):
        path = _built(into)
    took_s = time.monotonic() - began_s
    import torch

    version = ".".join(map(str, sys.version_info[:2]))
    say(f"compiled for torch {torch.__version__} and Python {version} in {took_s:.0f} s")
    if path.parent in (found := list(places())):
        say(f"recording uses it from now on: {path}")
    else:
        say(f"it is in {path}; recording looks for it in {found[0]} and in {found[-1]}")


def _plugin(into: Path | None) -> None:
    """NCCL's plugin fits every torch, so it is built first: it may be all that can be built."""
    try:
        path = build_plugin(best_directory() if into is None else into)
    except PluginBuildError as error:
        say(f"no plugin for NCCL: {error}", err=True)
    else:
        say(f"built the plugin for NCCL: {path}")


def _built(into: Path | None) -> Path:
    try:
        if into is not None:
            return build(into)
        with contextlib.suppress(PermissionError):
            BESIDE_THE_PACKAGE.mkdir(exist_ok=True)
        shared = os.access(BESIDE_THE_PACKAGE, os.W_OK)
        return build(BESIDE_THE_PACKAGE if shared else cache_directory())
    except BuildError as error:
        raise UserError(f"compile: {error}") from None
    except OSError as error:
        raise cannot_write(error.filename or into, error, "--into") from None
