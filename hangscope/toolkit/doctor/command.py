"""Parses a launch command: launcher, number of processes, script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python", "srun", "mpirun", "mpiexec")
_RUN_AS_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}

_FLAGS = {
    "torchrun": ("--standalone", "--no-python", "-m", "--module", "--run-path", "--no_python"),
    "accelerate": (
        "--multi_gpu",
        "--multi-gpu",
        "--cpu",
        "--use_deepspeed",
        "--use-deepspeed",
        "--use_fsdp",
        "--use-fsdp",
        "--quiet",
        "-q",
        "--module",
        "-m",
        "--no_python",
        "--tpu",
        "--debug",
    ),
    "deepspeed": ("--no_python", "--module", "--no_local_rank", "--force_multi", "--no_ssh"),
    "python": ("-u", "-O", "-B", "-I", "-s", "-S", "-E"),
    "srun": (),
    "mpirun": (),
}


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """One launcher with its options (names without dashes, ``-`` for ``_``) and what it starts."""

    launcher: str
    options: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        """The Python file it starts; empty for a module or another program."""
        return next((word for word in self.program if word.endswith(".py")), "")

    @property
    def inner(self) -> LaunchCommand | None:
        """A launcher started by this one."""
        return parse_command(self.program) if self.program else None


def parse_command(words: Sequence[str]) -> LaunchCommand | None:
    """The outermost launcher in ``words``; ``None`` if there is none.

    Environment assignments in front (``A=1 torchrun ...``, ``env A=1 ...``) are skipped.
    """
    rest = list(words)
    while rest and (rest[0] == "env" or ("=" in rest[0] and not rest[0].startswith("-"))):
        rest.pop(0)
    if not rest:
        return None
    name = PurePath(rest[0]).name
    if name.startswith("python"):
        at = rest.index("-m") + 1 if "-m" in rest[:4] else len(rest)
        launcher = _RUN_AS_MODULES.get("".join(rest[at : at + 1]))
        if launcher is not None:
            return _options(launcher, rest[at + 1 :])
        return _options("python", rest[1:])
    if name == "accelerate" and len(rest) > 1 and rest[1] == "launch":
        return _options("accelerate", rest[2:])
    if name in ("mpirun", "mpiexec"):
        return _options("mpirun", rest[1:])
    if name in LAUNCHERS and name != "accelerate":
        return _options(name, rest[1:])
    return None


def environment_of(words: Sequence[str]) -> dict[str, str]:
    """Variable assignments in front of the command."""
    found: dict[str, str] = {}
    for word in words:
        if word == "env":
            continue
        name, equals, value = word.partition("=")
        if not equals or name.startswith("-") or not name.isidentifier():
            break
        found[name] = value
    return found


def _options(launcher: str, words: list[str]) -> LaunchCommand:
    options: dict[str, str] = {}
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] != "--":
        word = words[index]
        name, equals, value = word.partition("=")
        index += 1
        key = name.lstrip("-").replace("_", "-")
        following = words[index] if index < len(words) else "-"
        option_follows = following.startswith("-") and not following.lstrip("-").isdigit()
        if equals:
            options[key] = value
        elif name in _FLAGS.get(launcher, ()) or option_follows:
            options[key] = "1"
        else:
            options[key] = following
            index += 1
    if index < len(words) and words[index] == "--":
        index += 1
    return LaunchCommand(launcher, options, tuple(words[index:]))
