"""Combines the families of checks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from hangscope.toolkit.doctor.command import LAUNCHERS, environment_of, parse_command
from hangscope.toolkit.doctor.deepspeed import check_deepspeed
from hangscope.toolkit.doctor.devices import check_devices
from hangscope.toolkit.doctor.host import check_host, check_variables
from hangscope.toolkit.doctor.launch import check_launch
from hangscope.toolkit.doctor.model import ERROR, NOTE, WARNING, Finding, Surroundings
from hangscope.toolkit.doctor.neighbours import check_neighbours
from hangscope.toolkit.doctor.script_hangs import check_hangs
from hangscope.toolkit.doctor.script_model import parse_script
from hangscope.toolkit.doctor.script_setup import check_setup
from hangscope.toolkit.doctor.timeouts import check_timeouts
from hangscope.trace.files.regular_files import read_regular
from hangscope.trace.files.source_text import decode_source

MAX_SCRIPT_BYTES = 4 << 20


def check_process(s: Surroundings) -> Iterator[Finding]:
    """All checks of this process and its host, which every rank runs for itself."""
    yield from check_devices(s)
    yield from check_neighbours(s)
    yield from check_variables(s)
    yield from check_timeouts(s)
    yield from check_host(s)


def check_files(
    s: Surroundings, script: Path | None, deepspeed_config: Path | None
) -> Iterator[Finding]:
    """All checks of the launch command and the program, which one rank runs for all."""
    yield from _unknown_command(s)
    yield from check_launch(s)
    yield from check_deepspeed(s, deepspeed_config)
    path = script or _script_of(s)
    if path is not None:
        yield from check_script(path, _nodes(s))


def _unknown_command(s: Surroundings) -> Iterator[Finding]:
    """A finding for a command that cannot be parsed, so that it is not taken for healthy."""
    if not s.command or parse_command(s.command) is not None:
        return
    word = next((word for word in s.command if "=" not in word and word != "env"), s.command[0])
    if shutil.which(word, path=s.env.get("PATH")) or Path(s.cwd, word).exists():
        level, what = NOTE, f"{word} is no launcher that the doctor can take apart"
    else:
        level, what = WARNING, f"there is no program called {word}"
    yield Finding(
        level,
        "command",
        f"{what}: only this host and its environment were checked",
        f"Give the command that starts the ranks ({', '.join(LAUNCHERS)}), not a script around it.",
    )


def check_script(path: Path, nodes: int = 1) -> Iterator[Finding]:
    """All checks of a training script's source."""
    try:
        parsed = parse_script(decode_source(read_regular(path, MAX_SCRIPT_BYTES)), str(path))
        found = [*check_hangs(parsed), *check_setup(parsed, nodes)]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = "nested too deeply" if isinstance(error, (RecursionError, MemoryError)) else ""
        what = what or (error.strerror if isinstance(error, OSError) else None) or str(error)
        yield Finding(ERROR, "script", what, "Correct the path or the file.", where=str(path))
        return
    yield from found


def with_command_environment(s: Surroundings) -> dict[str, str]:
    """The environment that the command will run in, including its own assignments."""
    return {**s.env, **environment_of(s.command)}


def _script_of(s: Surroundings) -> Path | None:
    command = parse_command(s.command)
    while command is not None:
        inner = command.inner
        if inner is None:
            break
        command = inner
    if command is None or not command.script:
        return None
    return Path(s.cwd) / command.script


def _nodes(s: Surroundings) -> int:
    command = parse_command(s.command)
    while command is not None:
        text = command.options.get("nnodes", command.options.get("num-machines", ""))
        most = text.split(":")[-1]
        if most.isdigit():
            return int(most)
        command = command.inner
    return 1
