"""A temporary folder that goes whatever ends this process."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

_REMOVE_AT_END_OF_INPUT = 'cat >/dev/null; exec rm -rf -- "$1"'


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """An empty folder, removed at the end, or by another process if this one is killed.

    The other process waits for the end of a pipe, which the kernel closes with the last process
    that holds it.
    """
    folder = tempfile.mkdtemp(prefix="hangscope-")
    remover = None
    try:
        with contextlib.suppress(OSError):  # no shell, no process: then only this one removes it
            remover = subprocess.Popen(
                ["/bin/sh", "-c", _REMOVE_AT_END_OF_INPUT, "hangscope-cleanup", folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what ends this process's group must not end it
            )
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if remover is not None and remover.stdin is not None:
            remover.stdin.close()
            remover.wait()
