"""The environment a distributed job should run in: what to set, what is set, what is wrong."""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from hangscope.toolkit.environments.interfaces import Interface, pick_fast, read_interfaces
from hangscope.toolkit.environments.rules import Problem, find_problems
from hangscope.toolkit.environments.variables import BY_NAME, VARIABLES, Variable, Version

if TYPE_CHECKING:
    from rich.table import Table

NEWEST: Version = (99, 0)


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable with its value, who set it, who reads it, and its effect.

    ``set_by`` is ``hangscope``, ``user``, ``torchrun`` or ``default``.
    """

    variable: str
    value: str
    set_by: str
    read_by: str
    effect: str


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    """What `configure_environment` did and found."""

    settings: tuple[Setting, ...]
    problems: tuple[Problem, ...]
    torch_version: str

    @property
    def set(self) -> dict[str, str]:
        """Variables set by this call."""
        return {s.variable: s.value for s in self.settings if s.set_by == "hangscope"}

    @property
    def kept(self) -> dict[str, str]:
        """Variables that had been set before and were kept."""
        return {s.variable: s.value for s in self.settings if s.set_by in ("user", "torchrun")}

    @property
    def conflicts(self) -> tuple[Problem, ...]:
        """Settings that contradict each other."""
        return tuple(p for p in self.problems if p.kind == "conflict")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Every problem in one sentence with its fix."""
        return tuple(f"{p.what}. {p.fix}" for p in self.problems)

    def table(self) -> Table:
        """The rows for a terminal."""
        from rich.markup import escape
        from rich.table import Table

        table = Table("variable", "value", "set by", "read by", "effect")
        for s in self.settings:
            cells = (s.variable, s.value, s.set_by, s.read_by, s.effect)
            table.add_row(*(escape(cell) for cell in cells))
        return table

    def as_dict(self) -> dict[str, object]:
        """The same for JSON."""
        from dataclasses import asdict

        return {
            "schema": "hangscope/environment/1",
            "torch": self.torch_version,
            "set": self.set,
            "settings": [asdict(s) for s in self.settings],
            "problems": [asdict(p) for p in self.problems],
        }


def configure_environment(
    *,
    overwrite: bool = False,
    interfaces: bool = True,
    environ: MutableMapping[str, str] | None = None,
    torch_version: str | None = None,
    found: Collection[Interface] | None = None,
    warn: bool = True,
) -> EnvironmentReport:
    """Set what a job needs to end instead of hanging; call it before creating the process group.

    Sets error handling, heartbeat, dumps and, if an InfiniBand or RoCE interface is up, the
    interface variables, all by the names that this torch version reads. Variables that are already
    set are kept unless ``overwrite``; warns of dangerous, unread and contradictory ones.

    Parameters
    ----------
    overwrite:
        Replace values that differ from the recommended ones.
    interfaces:
        Look for fast interfaces.
    environ:
        The environment to work on; ``None`` is this process's.
    torch_version:
        Such as ``"2.8.0"``; ``None`` asks the installed torch.
    found:
        Interfaces of this host; ``None`` reads them.
    warn:
        Emit a ``RuntimeWarning`` for each problem.

    Returns
    -------
    EnvironmentReport
        Every known variable that is set, with who set it, and the problems found.
    """
    env = os.environ if environ is None else environ
    text = torch_version or installed_torch_version()
    version = parse_version(text)
    here = list(found) if found is not None else (read_interfaces() if interfaces else [])
    ours: set[str] = set()
    for name, value in recommended(version, here if interfaces else ()).items():
        if env.get(_present_name(name, env), "") == "" or (overwrite and env.get(name) != value):
            env[name] = value
            ours.add(name)
    problems = tuple(find_problems(env, version, here))
    if warn:
        for problem in problems:
            warnings.warn(f"{problem.what}. {problem.fix}", RuntimeWarning, stacklevel=2)
    settings = tuple(_setting(name, env, ours) for name in _names_set(env))
    return EnvironmentReport(settings, problems, text)


def recommended(version: Version, interfaces: Collection[Interface] = ()) -> dict[str, str]:
    """What to set for this torch version on a host with these interfaces; values are not empty."""
    values = {
        variable.name_for(version): variable.recommended
        for variable in VARIABLES
        if variable.recommended and (variable.old_name or version >= variable.since)
    }
    fast = pick_fast(interfaces)
    if fast is not None:
        values |= {
            "NCCL_SOCKET_IFNAME": fast.name,
            "GLOO_SOCKET_IFNAME": fast.name,
            "NCCL_IB_DISABLE": "0",
        }
    return {name: value for name, value in values.items() if value}


def as_shell(values: Mapping[str, str]) -> str:
    """Quoted ``export`` lines, without empty values."""
    return "".join(f"export {k}={shlex.quote(v)}\n" for k, v in _clean(values).items())


def docker_arguments(values: Mapping[str, str]) -> list[str]:
    """``-e NAME=VALUE`` as an argument list for ``docker run`` or ``docker exec``."""
    return [part for k, v in _clean(values).items() for part in ("-e", f"{k}={v}")]


def parse_version(text: str) -> Version:
    """``"2.8.0+cu126"`` is ``(2, 8)``; anything unreadable counts as the newest."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else NEWEST


def installed_torch_version() -> str:
    """The installed torch's version, without importing it; empty if not installed."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def _clean(values: Mapping[str, str]) -> dict[str, str]:
    """Drop empty values and reject invalid variable names."""
    for name in values:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is not the name of an environment variable")
    return {name: value for name, value in values.items() if value}


def _present_name(name: str, env: Mapping[str, str]) -> str:
    """``name``, or its former name if only that is set, to respect the user's choice."""
    variable = BY_NAME.get(name)
    if variable and not env.get(name):
        for other in (variable.name, variable.old_name):
            if other and env.get(other):
                return other
    return name


def _names_set(env: Mapping[str, str]) -> list[str]:
    return [name for name in BY_NAME if env.get(name, "") != ""]


def _setting(name: str, env: Mapping[str, str], ours: Collection[str]) -> Setting:
    variable: Variable = BY_NAME[name]
    return Setting(name, env[name], _set_by(name, env, ours), variable.read_by, variable.effect)


def _set_by(name: str, env: Mapping[str, str], ours: Collection[str]) -> str:
    if name in ours:
        return "hangscope"
    if (
        name == "TORCH_NCCL_ASYNC_ERROR_HANDLING"
        and env[name] == "1"
        and "TORCHELASTIC_RUN_ID" in env
    ):
        return "torchrun"  # which sets it if nobody else has
    return "user"
