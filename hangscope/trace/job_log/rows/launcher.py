"""Torchrun, Slurm and MPI about their processes, nodes and ranks, and about the starts of jobs.

A log is often from a single node. Its local ranks equal the ranks only on the first node; which
node it is may be in an echoed command or in the output of the launcher's agent.
"""

from __future__ import annotations

import re

from hangscope.trace import signals
from hangscope.trace.job_log.evidence.attempt import Attempt, rank_ranges
from hangscope.trace.job_log.evidence.notes import TaskEnd
from hangscope.trace.job_log.evidence.processes import Process
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.job_log.rows.statements import ended, world_size
from hangscope.trace.model import MAX_RANK

_OUT_OF_ORDER_NS = 5 * 10**9
"""Collectors reorder lines by no more than this."""
_EXIT_CODE = re.compile(r"exited with exit code (\d{1,3})")
_MOST_TASKS = 10_000
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


def _restart(said: Said, attempt: Attempt) -> None:
    attempt.restart()


def _banner(said: Said, attempt: Attempt) -> bool:
    """Whether a launcher starts another job, whose log was appended to that of one that has ended.

    One that had started before those ends is another node's of the same job: their logs were put
    into one file one after the other. A job that was killed while it hung may show no end, but its
    watchdogs gave up, and that only once all launchers had started.
    """
    ends, newest_ns = attempt.ends, max(attempt.gave_up_ns, attempt.ends.agents_ns)
    ended = bool(ends.failures) or ends.step_ended
    ended |= any(notes.has_ended for notes in attempt.ranks.values())
    if said.line.at_ns and newest_ns:
        ended = said.line.at_ns > newest_ns and (attempt.given_up or ended)
    if ended:
        attempt.restart()
    return ended


def _failed(said: Said, attempt: Attempt) -> None:
    _note_agent(said, attempt)
    ended(said, attempt)


def _closing(said: Said, attempt: Attempt) -> None:
    _note_agent(said, attempt)
    pid = int(next(pid for pid in said.found.groups() if pid)[:9])
    attempt.ends.stopped.add(Process(pid, said.line.machine))


def _note_agent(said: Said, attempt: Attempt) -> None:
    """Record which torchrun agent mentions its workers, and whether time goes backwards."""
    ends, at_ns = attempt.ends, said.line.at_ns
    if said.line.pid is not None:
        ends.agents.add(Process(said.line.pid, said.line.machine))
    ends.agents_go_back |= 0 < at_ns < ends.agents_ns - _OUT_OF_ORDER_NS
    ends.agents_ns = max(ends.agents_ns, at_ns)


def _srun(said: Said, attempt: Attempt) -> None:
    """Task numbers are ranks if each task is one rank; with torchrun a task is a node."""
    how = said.text("how").lower()
    status = _EXIT_CODE.search(how)
    code = int(status[1]) if status else None
    signal = next(
        (number for words, number in signals.BY_DESCRIPTION.items() if words in how), None
    )
    oom, ends = "out of memory" in how or "oom" in how, attempt.ends
    victim = ends.step_ended and signal in (signals.SIGKILL, signals.SIGTERM) and not oom
    for low, high in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", said.text("tasks")):
        for task in range(int(low), min(int(high or low), int(low) + _MOST_TASKS) + 1):
            if victim:
                ends.stopped_tasks.add(task)
            ends.of_tasks.append(
                TaskEnd(task, said.text("host"), code, signal, said.line.at_ns, oom)
            )


def _step_ends(said: Said, attempt: Attempt) -> bool:
    attempt.ends.step_ended = True
    return False


def _listed(said: Said, attempt: Attempt) -> None:
    processes, ranks = attempt.processes, said.ranks("ranks")
    if said.text("which") == "local":
        processes.newest_local = ranks
    elif len(processes.newest_local) == len(ranks):
        listed = dict(zip(processes.newest_local, ranks, strict=True))
        processes.are_told(said.line.machine, listed, counted=False)


def _dumped(said: Said, attempt: Attempt) -> None:
    """SGLang's watchdog takes the stacks of its own process."""
    if said.line.rank is not None and not said.line.printed:
        pid = said.number("pid") or 0
        attempt.processes.is_told(said.line.rank, pid, said.line.machine)


def _mapping(said: Said, attempt: Attempt) -> None:
    processes = attempt.processes
    hosts = [rank_ranges(ranks) for ranks in _OF_HOST.findall(said.text("hosts"))]
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


# fmt: off
ROWS = (
    row("elastic-restart", "restart",
        r"Worker group FAILED\. \d+/\d+ attempts left; will restart worker group", _restart,
        "[default] Worker group FAILED. 2/3 attempts left; will restart worker group"),
    row("launch-banner", "restart",
        r"Setting OMP_NUM_THREADS environment variable for each process|"
        r"\[runner\.py:\d+:main\] cmd =", _banner,
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"),
    row("elastic-failed", "end",
        r"failed \(exitcode: (?P<code>-?\d+)\) (?:for binary located at .{0,1000}? with )?"
        r"local_rank: (?P<local>\d+) \((?:pid|process ID): (?P<pid>\d+)\)", _failed,
        "failed (exitcode: -9) local_rank: 1 (pid: 1284) of binary: /usr/bin/python3"),
    row("elastic-closing", "end",
        r"Sending process (\d+) closing signal SIG\w+|Closing process (\d+) via signal SIG\w+|"
        r"Unable to shutdown process (\d+) via", _closing,
        "Sending process 1290 closing signal SIGTERM",
        "Unable to shutdown process 1290 via 15, forcefully exiting via 9"),
    row("srun-task", "end",
        r"srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,\-]+): (?P<how>.*)", _srun,
        "srun: error: node3: task 5: Killed",
        "srun: error: node1: tasks 0-3: Exited with exit code 1"),
    row("srun-ends-step", "end",
        "srun: .*?Terminating (?:StepId|job step)|srun: Job step aborted", _step_ends,
        "srun: Terminating StepId=4711.0"),
)
NODES = (
    row("listed-ranks", "process", r"\b(?P<which>local|global)_ranks=\[(?P<ranks>[\d, ]{1,4096})\]",
        _listed, "local_ranks=[0, 1, 2, 3]", "global_ranks=[4, 5, 6, 7]"),
    row("dump-of-process", "process", r"Pyspy dump for PID (?P<pid>\d{1,9})", _dumped,
        "Pyspy dump for PID 309:"),
    row("deepspeed-mapping", "process", r"\bglobal_rank_mapping=.{0,40}?\{(?P<hosts>.{1,20000})\}",
        _mapping,
        "global_rank_mapping=defaultdict(<class 'list'>, {'n0': [0, 1], 'n1': [2, 3]})"),
    row("node-options", "process", f"{_COUNT}|{_NUMBER}|--standalone", _options,
        "torchrun --nnodes=2 --node_rank=1 --nproc_per_node=4 train.py",
        "torchrun --standalone --nproc_per_node=4 train.py"),
)
WORLD = (
    row("world-size", "world",
        r"(?:^|[\s,({'\"])(?:WORLD_SIZE|[Ww]orld[_ ]size|num_processes|dist_world_size)['\"]?"
        r"\s*(?:[=:]|is)\s*['\"]?(\d{1,6})\b"
        r"|GLOBAL_RANK: \d+, MEMBER: \d+/(\d{1,6})\b|Starting with (\d{1,6}) processes"
        r"|\bglobal_world_sizes=\[(\d{1,6})\b|\bMPI size: (\d{1,6}), ", world_size,
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8", "world_size=16",
        "All distributed processes registered. Starting with 8 processes",
        "MPI size: 4, MPI local size: 4, rank: 2"),
)
# fmt: on
