"""The ``hangscope`` command: one file per subcommand, each loaded only when it is called.

**In**: a command line. **Out**: text for people on stdout, or JSON with ``--json``; an exit status
that scripts can use: 0 healthy, 1 a finding, 2 wrong usage or nothing readable, 3 an internal
error.

* `console` prints, `errors` turns exceptions into one line, `budget` and `types` are options that
  several commands have.
* The other files are commands, named as such.

**Rules.** ``hangscope --help`` must answer at once, so the short help texts are here, and neither
torch nor pandas nor Textual is imported for it. Commands do as little as possible: they read
options, call one function of the layers below, and print.

**Imported by** nobody; imports every layer.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import os
import shutil
import sys

import rich_click as click

from hangscope._version import __version__
from hangscope.cli.errors import AS_USER, INTERNAL_ERROR, UserError, internal_error

COMMANDS = {
    "analyze": "Say who diverged, where, and what to do, from run directories, dumps or logs.",
    "run": "Run a command with recording on and HangScope as its monitor.",
    "tui": "Show timelines in the terminal, live or post-mortem.",
    "slow": "Say who makes everybody wait, how often, and what it costs.",
    "export": "Convert a run for other tools.",
    "collect": "Bring what a job left on its nodes to one place, small.",
    "replay": "Check that recorded hangs still get their expected verdicts.",
    "mcp": "Serve the same answers as tools for coding agents.",
    "doctor": "Check the launch environment before a job starts.",
    "env": "Print the recommended environment for sh, docker or json.",
    "compile": "Make recording cheaper, with a C++ compiler.",
    "demo": "Run a real job with a real fault, and show the verdict on it.",
}

LATEST = "hangscope-runs/latest"
_RESOLVING = "hangscope.resolving"


class LazyGroup(click.RichGroup):
    """A command group that imports ``hangscope.cli.<name>`` only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if not ctx.meta.get(_RESOLVING):  # only listed in the help
            return click.Command(cmd_name, help=COMMANDS[cmd_name])
        command = importlib.import_module(f"hangscope.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        ctx.meta[_RESOLVING] = True
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}{_suggestion(args[0])}")
        return super().resolve_command(ctx, args)


def _suggestion(word: str) -> str:
    """A hint at the command that `word` may be meant for; empty if there is none."""
    if word.endswith(".py") or shutil.which(word):
        launch = f"torchrun {word}" if word.endswith(".py") else word
        return f" (did you mean: hangscope run -- {launch} ...)"
    if os.path.exists(word):
        return f" (did you mean: hangscope analyze {word})"
    close = difflib.get_close_matches(word, COMMANDS, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _called() -> str:
    """The command line's own words for what it called, if an error does not say it."""
    named = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    return f"hangscope {named}" if named in COMMANDS else "hangscope"


def _newest_run(error: click.UsageError) -> str:
    """If the path is missing, a hint at the newest run in this directory."""
    wanted = error.param if isinstance(error, click.MissingParameter) else None
    if wanted is None or wanted.metavar != "PATH..." or not os.path.exists(LATEST):
        return ""
    return f" (the newest run here is {LATEST})"


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hangscope")
def cli() -> None:
    """Find out why a distributed PyTorch job hangs.

    Record with HANGSCOPE=1, then ask: hangscope analyze RUN_DIRECTORY
    """


def main() -> None:
    """Entry point.

    Exit status: 0 healthy, 1 something found, 2 bad usage or nothing readable, 3 internal error.
    """
    _open_streams()
    try:
        _main()
    finally:
        _give_up_unwritten()


def _main() -> None:
    from hangscope.cli.console import say_if_possible

    try:
        sys.exit(cli(prog_name="hangscope", standalone_mode=False))
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else _called()
        said = " ".join(error.format_message().split()).rstrip(".") + _newest_run(error)
        say_if_possible(f"{command}: {said}; see {command} --help")
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except UserError as error:
        say_if_possible(f"hangscope: {error}")
        sys.exit(error.exit_status)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        hint = f"; {AS_USER}" if isinstance(error, PermissionError) else ""
        if not error.filename and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF):
            where, hint = "cannot write the output: ", "; redirect it elsewhere"
        say_if_possible(f"hangscope: {where}{error.strerror or error}{hint}")
        sys.exit(2)
    except Exception as error:  # a mistake in HangScope is one line as well
        say_if_possible(internal_error(_called(), error))
        if sys.flags.dev_mode:
            raise
        sys.exit(INTERNAL_ERROR)


def _give_up_unwritten() -> None:
    """Keep the interpreter from writing again, at its end, what could not be written.

    It would change the exit status to 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_streams() -> None:
    """Redirect closed standard streams (``>&-``) to null, because print needs them."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
