"""The one error type a command may end with: a single line that says what to do."""

from __future__ import annotations


class UserError(Exception):
    """Printed on stderr without a traceback; ``exit_status`` becomes the command's."""

    def __init__(self, message: str, exit_status: int = 2) -> None:
        super().__init__(message)
        self.exit_status = exit_status
