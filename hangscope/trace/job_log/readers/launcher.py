"""Output of launchers and schedulers about their processes, and about job starts."""

from __future__ import annotations

import re

from hangscope.trace import signals
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers import rendezvous
from hangscope.trace.job_log.readers.evidence import Evidence
from hangscope.trace.job_log.readers.process_ends import LauncherFailure, TaskEnd
from hangscope.trace.job_log.readers.process_ranks import Process
from hangscope.trace.model import MAX_RANK

_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\) (?:for binary located at .{0,1000}? with )?local_rank: "
    r"(?P<local>\d+) \((?:pid|process ID): (?P<pid>\d+)\)"
)
_CLOSING = re.compile(
    r"Sending process (\d+) closing signal SIG\w+|Closing process (\d+) via signal SIG\w+|"
    r"Unable to shutdown process (\d+) via"
)
_SRUN = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,\-]+): (?P<how>.*)")
_STEP_ENDS = re.compile(
    r"srun: .*?Terminating (?:StepId|job step)|slurmstepd: .*? CANCELLED AT |srun: Job step aborted"
)
_MPIRUN = re.compile(r"process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)")
_RESTART = re.compile(r"Worker group FAILED\. \d+/\d+ attempts left; will restart worker group")
_BANNER = re.compile(
    r"Setting OMP_NUM_THREADS environment variable for each process|\[runner\.py:\d+:main\] cmd ="
)
"""What torchrun and DeepSpeed print when they start."""
_WORLD = re.compile(
    r"(?:^|[\s,({'\"])(?:WORLD_SIZE|[Ww]orld[_ ]size|num_processes|dist_world_size)['\"]?"
    r"\s*(?:[=:]|is)\s*['\"]?(\d{1,6})\b"
    r"|GLOBAL_RANK: \d+, MEMBER: \d+/(\d{1,6})\b|Starting with (\d{1,6}) processes"
    r"|\bglobal_world_sizes=\[(\d{1,6})\b"
)
_OF_THE_WORLD = ("orld", "WORLD", "num_p", "MEMBER", "Starting with")
_OUT_OF_ORDER_NS = 5 * 10**9
"""Collectors reorder lines by no more than this."""
WORDS = (
    "Worker group FAILED", "OMP_NUM_THREADS", "[runner.py:", "failed (exitcode:", "closing signal",
    "Closing process", "Unable to shutdown", "srun", "slurmstepd", "exited on signal",
    *rendezvous.WORDS, *_OF_THE_WORLD,
)  # fmt: skip


def read(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Record what such a line says. Returns whether it was one."""
    text = line.text
    if _RESTART.search(text) or (_BANNER.search(text) and _is_another_start(at_ns, evidence)):
        evidence.restart()
        return True
    if _failures(line, at_ns, evidence) or rendezvous.read(line, at_ns, evidence):
        return True
    maybe = any(word in text for word in _OF_THE_WORLD)
    world = _WORLD.search(text) if maybe else None
    stated = int(next(g for g in world.groups() if g)) if world else 0
    if 0 < stated <= MAX_RANK + 1:
        evidence.world_size = max(evidence.world_size or 0, stated)
    return False


def _is_another_start(at_ns: int, evidence: Evidence) -> bool:
    """Whether a launcher starts another job, whose log was appended to that of one that has ended.

    One that had started before those ends is another node's of the same job: their logs were put
    into one file one after the other. A job that was killed while it hung may show no end, but its
    watchdogs gave up, and that only once all launchers had started.
    """
    newest_ns = max(evidence.gave_up_ns, evidence.ends.agents_ns)
    if at_ns and newest_ns:
        return at_ns > newest_ns and (evidence.given_up or _has_ended(evidence))
    return _has_ended(evidence)


def _has_ended(evidence: Evidence) -> bool:
    """Whether the log tells the end of a process or a job step."""
    return (
        bool(evidence.ends.failures)
        or evidence.ends.step_ended
        or any(notes.has_ended for notes in evidence.ranks.values())
    )


def _failures(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    text = line.text
    found = _FAILED.search(text)
    if found:
        _note_agent(line, at_ns, evidence)
        code, local, pid = (int(found.group(n)[:9]) for n in ("code", "local", "pid"))
        evidence.ends.failures.append(LauncherFailure(local, pid, code, at_ns, line.machine))
        return True
    found = _CLOSING.search(text)
    if found:
        _note_agent(line, at_ns, evidence)
        pid = int(next(pid for pid in found.groups() if pid)[:9])
        evidence.ends.stopped.add(Process(pid, line.machine))
        return True
    found = _SRUN.search(text)
    if found:
        _srun(found, at_ns, evidence)
        return True
    if "srun" in text or "slurmstepd" in text:
        evidence.ends.step_ended |= bool(_STEP_ENDS.search(text))
    found = _MPIRUN.search(text)
    if found:
        rank = int(found.group(1)[:7])
        notes = evidence.of(rank)
        notes.host = notes.host or found.group(3)
        notes.ended(-int(found.group(4)[:3]), at_ns)
        return True
    return False


def _note_agent(line: LogLine, at_ns: int, evidence: Evidence) -> None:
    """Record which torchrun agent mentions its workers, and whether time goes backwards."""
    ends = evidence.ends
    if line.pid is not None:
        ends.agents.add(Process(line.pid, line.machine))
    ends.agents_go_back |= 0 < at_ns < ends.agents_ns - _OUT_OF_ORDER_NS
    ends.agents_ns = max(ends.agents_ns, at_ns)


def _srun(found: re.Match[str], at_ns: int, evidence: Evidence) -> None:
    """Task numbers are ranks if each task is one rank; with torchrun a task is a node."""
    how = found.group("how").lower()
    found_code = re.search(r"exited with exit code (\d{1,3})", how)
    code = int(found_code[1]) if found_code else None
    signal = next(
        (number for words, number in signals.BY_DESCRIPTION.items() if words in how), None
    )
    oom = "out of memory" in how or "oom" in how
    for low, high in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", found.group("tasks")):
        for task in range(int(low), min(int(high or low), int(low) + 10000) + 1):
            if (
                evidence.ends.step_ended
                and signal in (signals.SIGKILL, signals.SIGTERM)
                and not oom
            ):
                evidence.ends.stopped_tasks.add(task)
            evidence.ends.of_tasks.append(TaskEnd(task, found["host"], code, signal, at_ns, oom))
