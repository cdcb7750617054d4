"""Output of launchers about the nodes of a job: how many there are, and which ranks each has.

A log is often from a single node. Its local ranks equal the ranks only on the first node; which
node it is may be in an echoed command or in the output of the launcher's agent.
"""

from __future__ import annotations

import re

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.model import MAX_RANK

_COUNT = (
    r"(?:--?nnodes|--num[_-]?machines|--num[_-]?nodes|\bNNODES|\bnnodes|\bnum_nodes|"
    r"\bgroup_world_size)['\"]?(?:\s*[=:]\s*|\s+)['\"]?(?:\d{1,5}:)?(\d{1,5})\b(?![.\d])"
)
_NUMBER = (
    r"(?:--node[_-]rank|--machine[_-]rank|\bNODE_RANK|\bnode_rank)['\"]?"
    r"(?:\s*[=:]\s*|\s+)['\"]?(\d{1,5})\b"
)
_PER_NODE = re.compile(r"(?:--nproc[_-]per[_-]node|\bnum_local_procs)(?:\s*=\s*|\s+)(\d{1,4})\b")
_DYNAMIC = re.compile(r"--rdzv[_-](?:backend|endpoint)")
"""With this, ranks are assigned in order of arrival, whatever number a node was given."""
_OF_HOST = re.compile(r"\[([\d, ]{0,4096})\]")


def _listed(said: Said, attempt: Attempt) -> None:
    processes, ranks = attempt.processes, _numbers(said.text("ranks"))
    if said.text("which") == "local":
        processes.newest_local = ranks
    elif len(processes.newest_local) == len(ranks):
        listed = dict(zip(processes.newest_local, ranks, strict=True))
        processes.are_told(said.line.machine, listed, counted=False)


def _mapping(said: Said, attempt: Attempt) -> None:
    processes = attempt.processes
    hosts = [_numbers(ranks) for ranks in _OF_HOST.findall(said.text("hosts"))]
    processes.nodes = max(processes.nodes, len(hosts))
    number = processes.newest_node
    if number is not None and number < len(hosts):
        processes.are_told(said.line.machine, dict(enumerate(hosts[number])), counted=False)


def _options(said: Said, attempt: Attempt) -> bool:
    text, processes = said.line.text, attempt.processes
    count, number = re.search(_COUNT, text), re.search(_NUMBER, text)
    per_node = _PER_NODE.search(text)
    nodes = int(count[1]) if count else 1
    processes.is_one_node |= (count is not None and nodes == 1) or "--standalone" in text
    processes.newest_node = int(number[1]) if number else processes.newest_node
    processes.nodes = max(processes.nodes, nodes, int(number[1]) + 1 if number else 1)
    if number is None or per_node is None or _DYNAMIC.search(text):
        return False
    first, size = int(number[1]) * int(per_node[1]), int(per_node[1])
    if first + size <= MAX_RANK:
        ranks = {local: first + local for local in range(size)}
        processes.are_told(said.line.machine, ranks, counted=True)
    return False


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number[:8]) for number in re.findall(r"\d+", text))


# fmt: off
ROWS = (
    row("listed-ranks", "process", r"\b(?P<which>local|global)_ranks=\[(?P<ranks>[\d, ]{1,4096})\]",
        _listed, "local_ranks=[0, 1, 2, 3]", "global_ranks=[4, 5, 6, 7]"),
    row("deepspeed-mapping", "process", r"\bglobal_rank_mapping=.{0,40}?\{(?P<hosts>.{1,20000})\}",
        _mapping,
        "global_rank_mapping=defaultdict(<class 'list'>, {'n0': [0, 1], 'n1': [2, 3]})"),
    row("node-options", "process", f"{_COUNT}|{_NUMBER}|--standalone", _options,
        "torchrun --nnodes=2 --node_rank=1 --nproc_per_node=4 train.py",
        "torchrun --standalone --nproc_per_node=4 train.py"),
)
# fmt: on
