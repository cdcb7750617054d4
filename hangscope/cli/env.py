"""``hangscope env``: print the recommended environment."""

from __future__ import annotations

import json
import os
import re
import shlex

import rich_click as click

from hangscope.cli.console import say
from hangscope.cli.errors import UserError
from hangscope.toolkit.environments.environment import (
    EnvironmentReport,
    as_shell,
    configure_environment,
    docker_arguments,
)
from hangscope.toolkit.environments.variables import BY_NAME


def printable(report: EnvironmentReport) -> dict[str, str]:
    """The variables to print: all set or kept ones, except those that are harmful or not read.

    Devices are left out, because they belong to a process rather than to the job.
    """
    values = report.set | report.kept
    values.pop("CUDA_VISIBLE_DEVICES", None)
    for problem in report.problems:
        variable = BY_NAME.get(problem.variable)
        if problem.kind == "unread":
            values.pop(problem.variable, None)
        elif problem.kind == "dangerous" and problem.variable in values:
            del values[problem.variable]
            if variable is not None and variable.recommended:
                values[problem.variable] = variable.recommended
    return values


@click.command("env")
@click.option(
    "--format",
    "form",
    type=click.Choice(["sh", "docker", "json"]),
    default="sh",
    show_default=True,
    help="sh: export lines; docker: an argument list; json: with who reads each and why.",
)
@click.option("--sh", "form", flag_value="sh", help="The same as --format sh.")
@click.option("--docker", "form", flag_value="docker", help="The same as --format docker.")
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
@click.option(
    "--torch",
    "torch_version",
    metavar="VERSION",
    help="For this version of torch, not the installed one.",
)
@click.option("--no-interfaces", is_flag=True, help="Do not look for InfiniBand or RoCE.")
@click.option("--record", is_flag=True, help="Switch on HangScope's recording, too.")
def command(form: str, torch_version: str | None, no_interfaces: bool, record: bool) -> None:
    """Print the recommended environment for sh, docker or json.

    Values that are already set are kept, unless they are dangerous or nothing reads them: those are
    explained on stderr. Use it as

    \b
      eval "$(hangscope env)"
      eval "set -- $(hangscope env --docker)"; docker run "$@" IMAGE torchrun ...
    """
    if torch_version is not None and not re.match(r"\d+\.\d+", torch_version):
        raise UserError(f"--torch {torch_version}: give a version, such as 2.6 or 2.13.0")
    env = dict(os.environ)
    if record:
        env["HANGSCOPE"] = "1"
    report = configure_environment(
        environ=env, torch_version=torch_version, interfaces=not no_interfaces, warn=False
    )
    values = printable(report)
    for problem in report.problems:
        say(f"{problem.level}: {problem.what}. {problem.fix}", err=True)
    if form == "json":
        say(json.dumps(report.as_dict(), indent=2))
    elif form == "docker":
        say(shlex.join(docker_arguments(values)))
    else:
        say(as_shell(values), end="")
