"""Output of launchers about the nodes of a job: how many there are, and which ranks each has.

A log is often from a single node. Its local ranks equal the ranks only on the first node; which
node it is may be in an echoed command or in the output of the launcher's agent.
"""

from __future__ import annotations

import re

from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import Evidence
from hangscope.trace.model import MAX_RANK

_COUNT = re.compile(
    r"(?:--?nnodes|--num[_-]?machines|--num[_-]?nodes|\bNNODES|\bnnodes|\bnum_nodes|"
    r"\bgroup_world_size)['\"]?(?:\s*[=:]\s*|\s+)['\"]?(?:\d{1,5}:)?(\d{1,5})\b(?![.\d])"
)
_NUMBER = re.compile(
    r"(?:--node[_-]rank|--machine[_-]rank|\bNODE_RANK|\bnode_rank)['\"]?"
    r"(?:\s*[=:]\s*|\s+)['\"]?(\d{1,5})\b"
)
_PER_NODE = re.compile(r"(?:--nproc[_-]per[_-]node|\bnum_local_procs)(?:\s*=\s*|\s+)(\d{1,4})\b")
_DYNAMIC = re.compile(r"--rdzv[_-](?:backend|endpoint)")
"""With this, ranks are assigned in order of arrival, whatever number a node was given."""
_LISTED = re.compile(r"\b(local|global)_ranks=\[([\d, ]{1,4096})\]")
_MAPPING = re.compile(r"\bglobal_rank_mapping=.{0,40}?\{(.{1,20000})\}")
_OF_HOST = re.compile(r"\[([\d, ]{0,4096})\]")
WORDS = (
    "nnodes", "NNODES", "num_machines", "num_nodes", "num-nodes", "group_world_size",
    "--standalone", "node_rank", "node-rank", "NODE_RANK", "machine_rank", "local_ranks=[",
    "global_ranks=[", "global_rank_mapping=",
)  # fmt: skip


class Nodes:
    """Follows statements about a node over several lines."""

    def __init__(self) -> None:
        self._number: int | None = None
        """The number of the node whose launcher printed last."""
        self._local: tuple[int, ...] = ()

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        """Record what such a line says. Returns whether no other reader needs it."""
        text, processes = line.text, evidence.processes
        listed = _LISTED.search(text)
        if listed:
            ranks = _numbers(listed[2])
            if listed[1] == "local":
                self._local = ranks
            elif len(self._local) == len(ranks):
                processes.are_listed(line.machine, dict(zip(self._local, ranks, strict=True)))
            return True
        mapping = _MAPPING.search(text)
        if mapping:
            hosts = [_numbers(ranks) for ranks in _OF_HOST.findall(mapping[1])]
            processes.nodes = max(processes.nodes, len(hosts))
            if self._number is not None and self._number < len(hosts):
                processes.are_listed(line.machine, dict(enumerate(hosts[self._number])))
            return True
        self._options(line, evidence)
        return False

    def _options(self, line: LogLine, evidence: Evidence) -> None:
        text, processes = line.text, evidence.processes
        count, number, per_node = (p.search(text) for p in (_COUNT, _NUMBER, _PER_NODE))
        nodes = int(count[1]) if count else 1
        processes.is_one_node |= (count is not None and nodes == 1) or "--standalone" in text
        self._number = int(number[1]) if number else self._number
        processes.nodes = max(processes.nodes, nodes, int(number[1]) + 1 if number else 1)
        if number is None or per_node is None or _DYNAMIC.search(text):
            return
        first, size = int(number[1]) * int(per_node[1]), int(per_node[1])
        if first + size <= MAX_RANK:
            ranks = {local: first + local for local in range(size)}
            processes.are_counted(line.machine, ranks)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number[:8]) for number in re.findall(r"\d+", text))
