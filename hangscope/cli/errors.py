"""The only error type a command may end with: a single line that says what to do."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence

INTERNAL_ERROR = 3
"""Exit status if HangScope itself fails: neither a verdict nor bad usage."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

AS_USER = "run it as the job's user"
"""Advice if the job's files may not be read."""


class UserError(Exception):
    """Printed on stderr without a traceback; ``exit_status`` becomes the command's."""

    def __init__(self, message: str, exit_status: int = 2) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def internal_error(command: str, error: Exception) -> str:
    """The line for an exception that nobody expected: what, where, and how to report it."""
    if isinstance(error, MemoryError):
        return f"{command}: needs more memory than there is; give it less to read at once"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.startswith(_PACKAGE)] or frames
    where = f"{os.path.relpath(own[-1].filename, _PACKAGE)}:{own[-1].lineno}" if own else "?"
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
    return (
        f"{command}: internal error, {what} (at {where}); please open an issue in HangScope's "
        "repository with this line and the traceback, which `python -X dev -m hangscope ...` shows"
    )


def no_empty_path(paths: Sequence[str]) -> None:
    """Reject empty paths.

    Python takes them for the working directory, but they usually come from an unset variable.

    Raises
    ------
    UserError
        If any path is empty.
    """
    if "" in paths:
        raise UserError("empty path (an unset variable?); use . for the working directory")


def cannot_write(path: object, error: OSError, option: str) -> UserError:
    """The error for a file or folder that cannot be created."""
    why = error.strerror or str(error)
    return UserError(f"cannot write {path}: {why}; choose another path with {option}")


def nothing_readable(paths: Sequence[str], reasons: Sequence[str]) -> UserError:
    """The error if no path is readable: the first reason, how many more, and what to pass."""
    from hangscope.report.escape import plain

    first = plain(reasons[0], 500) if reasons else "no file found"
    if len(paths) == 1:
        first = first.removeprefix(f"{paths[0]}: ")
    if first.startswith("standard input: "):
        first = first.removeprefix("standard input: ")
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    advice = "; give a run directory, Flight Recorder dumps or a job log"
    if first.endswith("permission denied"):
        advice = f"; {AS_USER}"
    elif ";" in first:
        advice = ""
    named = ", ".join("standard input" if path == "-" else plain(path, 500) for path in paths)
    return UserError(f"nothing readable in {named}: {first}{more}{advice}")
