"""The only error type a command may end with: a single line that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

AS_USER = "run it as the job's user"
"""Advice if the job's files may not be read."""


class UserError(Exception):
    """Printed on stderr without a traceback; ``exit_status`` becomes the command's."""

    def __init__(self, message: str, exit_status: int = 2) -> None:
        super().__init__(message)
        self.exit_status = exit_status


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
