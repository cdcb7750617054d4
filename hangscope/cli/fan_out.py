"""Runs a command on every node of a job through what already reaches the nodes."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from hangscope.cli.errors import UserError
from hangscope.trace.loading.remote import joined, opened_for_writing
from hangscope.trace.loading.tasks import BUNDLE

AT_ONCE = 32
LIMIT_S = 600.0


class Node(NamedTuple):
    """A node, and what is written in front of a command to run it there."""

    name: str
    prefix: tuple[str, ...]
    by_shell: bool = False
    """Whether a shell there reads the command."""

    def running(self, command: Sequence[str]) -> list[str]:
        """What to start here to run it there."""
        return [*self.prefix, *((shlex.join(command),) if self.by_shell else command)]


def nodes_of(where: str) -> list[Node]:
    """The nodes of ``slurm:JOBID``, ``kubectl:SELECTOR`` or ``ssh:HOST,HOST,...``.

    Raises
    ------
    UserError
        If it is none of these, or the tool is missing or fails.
    """
    kind, _, what = where.partition(":")
    if not what or what.startswith("-"):
        raise UserError(f"--on {where}: give slurm:JOBID, kubectl:SELECTOR or ssh:HOST,HOST,...")
    if kind == "slurm":
        listed = _asked("squeue", "--noheader", "--jobs", what, "--format", "%N")
        names = _asked("scontrol", "show", "hostnames", listed).split()
        run = ("srun", "--jobid", what, "--overlap", "--nodes=1", "--ntasks=1", "--nodelist")
        return [Node(name, (*run, name)) for name in names]
    if kind == "kubectl":
        names = _asked("kubectl", "get", "pods", "--selector", what, "--output",
                       "jsonpath={.items[*].metadata.name}").split()  # fmt: skip
        return [Node(name, ("kubectl", "exec", name, "--")) for name in names]
    if kind == "ssh":
        names = [name for name in what.split(",") if name and not name.startswith("-")]
        return [Node(name, ("ssh", "-o", "BatchMode=yes", name), by_shell=True) for name in names]
    raise UserError(f"--on {where}: {kind} is not known; there are slurm, kubectl and ssh")


def bring(nodes: Sequence[Node], command: Sequence[str], output: str) -> dict[str, str]:
    """Write what ``command`` prints on each node to ``output/NODE.hangscope.tar.gz``.

    Returns
    -------
    dict
        For each node that failed, why.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda node: _brought(node, command, output), nodes)
        results = zip(nodes, list(found), strict=True)
    return {node.name: why for node, why in results if why}


def _brought(node: Node, command: Sequence[str], output: str) -> str:
    target = joined(output, f"{node.name}{BUNDLE}")
    try:
        done = subprocess.run(
            node.running(command), capture_output=True, stdin=subprocess.DEVNULL,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT_S:.0f} s"
    except OSError as error:
        return error.strerror or type(error).__name__
    if done.returncode or not done.stdout:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit status {done.returncode}"
    with opened_for_writing(target) as file:
        file.write(done.stdout)
    return ""


def _asked(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not installed here") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"{command[0]} does not answer") from None
    if done.returncode:
        raise UserError(f"{command[0]}: {done.stderr.strip()[:300]}")
    return done.stdout.strip()
