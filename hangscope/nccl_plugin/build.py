"""Builds the plugin with any C compiler, in about a second.

It needs neither NCCL nor CUDA nor torch nor Python's headers, so one library serves every version
of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from hangscope.nccl_plugin.place import (
    BESIDE_THE_PACKAGE,
    SOURCES,
    built_plugin,
    file_name,
)
from hangscope.ring.trusted_files import UntrustedError, cache_directory, is_trusted

_PLENTY_S = 60.0


class PluginBuildError(Exception):
    """The plugin cannot be built here; the message says why and what to do."""


def compiler() -> list[str] | None:
    """The command of a C compiler, or None if there is none: ``CC``, cc, gcc or clang."""
    given = os.environ.get("CC", "").split()
    if given and shutil.which(given[0]):
        return given
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return None if found is None else [found]


def processor_of(command: list[str]) -> str:
    """The processor that a compiler makes code for, as `platform.machine` calls it; empty if it
    does not say."""
    try:
        done = subprocess.run(
            [*command, "-dumpmachine"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PLENTY_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().partition("-")[0] if done.returncode == 0 else ""


def build_plugin(directory: Path) -> Path:
    """Build the plugin into a directory, which is made if needed; returns the file.

    Raises
    ------
    PluginBuildError
        Without a compiler, or if it fails or the directory cannot be written.
    """
    command = compiler()
    if command is None:
        raise PluginBuildError("there is no C compiler; install gcc or clang, or set CC")
    target = directory / file_name(processor_of(command))
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o755)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as place:
            made = Path(place) / target.name
            _compile(command, made)
            made.chmod(0o755)
            os.replace(made, target)
    except OSError as error:
        raise PluginBuildError(f"{directory} cannot be written: {error.strerror}") from None
    return target


def ensure_plugin() -> Path:
    """The built plugin; builds it if there is none that may be loaded.

    Raises
    ------
    PluginBuildError
        If it cannot be built.
    """
    try:
        found = built_plugin()
    except UntrustedError:
        found = None
    return found or build_plugin(best_directory())


def best_directory() -> Path:
    """Beside the package, so that all users of an image share it, or the user's cache.

    The latter also where others than this user may write beside the package.
    """
    try:
        BESIDE_THE_PACKAGE.mkdir(exist_ok=True, mode=0o755)
    except OSError:
        return cache_directory()
    fits = os.access(BESIDE_THE_PACKAGE, os.W_OK) and is_trusted(BESIDE_THE_PACKAGE)
    return BESIDE_THE_PACKAGE if fits else cache_directory()


def _compile(command: list[str], made: Path) -> None:
    options = [
        "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread",
        # NCCL closes the library with its last communicator; proxies may still be inside it.
        "-Wl,-z,nodelete",
    ]  # fmt: skip
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    try:
        done = subprocess.run(
            [*command, *options, *sources, "-o", str(made)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PLENTY_S,
        )
    except subprocess.TimeoutExpired:
        raise PluginBuildError(f"the compiler {command[0]} does not end") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        first = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise PluginBuildError(f"the compiler failed: {first.strip()[:400]}")
