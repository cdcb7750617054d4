"""Output of launchers and schedulers other than torchrun about processes that ended.

`torch.multiprocessing.spawn`, DeepSpeed's launcher, Open MPI, PMIx (`prterun`), MPICH or Intel MPI
(Hydra), Composer, Lightning, vLLM, Ray (which states the pid instead of the rank), and shells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangscope.trace import signals
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.processes import Process
from hangscope.trace.job_log.lines.line import DRIVER_HOST, UNKNOWN_MACHINE, Machine
from hangscope.trace.job_log.rows.row import Report, Said, row
from hangscope.trace.job_log.rows.statements import claim, ended, stopped
from hangscope.trace.model import ClaimDetails

_MPI_CODE = re.compile(r"^\s*Exit code:\s+(\d{1,3})")
_HYDRA_END = re.compile(r"(?P<how>KILLED BY SIGNAL|EXIT STRING|EXIT CODE): (?P<number>\d{1,3})")
_MAX_TRACEBACK = 120


@dataclass(slots=True)
class RepeatedTraceback:
    """The traceback of a process that its parent repeats, without a prefix."""

    local_rank: int | None = None
    until: int = 0
    """The last line that may belong to it."""


def _spawn_error(said: Said, attempt: Attempt) -> None:
    """The parent repeats the traceback of the process that it spawned."""
    repeated = attempt.part(RepeatedTraceback)
    repeated.local_rank, repeated.until = said.number("local"), said.line.number + _MAX_TRACEBACK


def _deepspeed(said: Said, attempt: Attempt) -> None:
    """DeepSpeed prints the command of the process it started last, whichever one failed."""
    if said.number("local") == 0:  # the only process
        ended(said, attempt)
    else:
        attempt.claim("launcher_failure", said.line, certain=False)


_FIELD = re.compile(r"\s*(class_name|actor_id|pid|name|namespace|ip|label): ?(\S*)\s*")


def _raylet(said: Said, attempt: Attempt) -> None:
    """A worker of another node may have the same pid; the driver's lines have no address."""
    machine, ip = said.line.machine, said.text("ip")
    if ip:
        heard = any(known.host == ip for known in attempt.processes.machines)
        machine = Machine(ip if heard else DRIVER_HOST)
    process = Process(said.number("pid") or 0, machine)
    attempt.ends.found_dead.setdefault(process, said.line.at_ns)


def _worker(said: Said, attempt: Attempt) -> None:
    """Ray Train lists the workers that it has started."""
    rank = said.number("rank", 7) or 0
    attempt.of(rank)
    attempt.processes.is_told(rank, said.number("pid") or 0, Machine(said.text("ip")))


def _actor(said: Said, attempt: Attempt) -> Report:
    """The lines below state the pid, and then the node."""
    dead, pid = attempt.ends.found_dead, said.number("pid")

    def tell() -> None:
        if not dead:
            attempt.claim("launcher_failure", said.line, certain=False)

    attempt.at_end[_actor] = tell
    if pid is not None:
        dead.setdefault(Process(pid, Machine(said.text("ip") or None)), said.line.at_ns)
    pid = None
    field = _FIELD.fullmatch((yield True).text)
    while field is not None:
        if field[1] == "pid" and field[2][:9].isdigit():
            pid = int(field[2][:9])
            dead.setdefault(Process(pid, UNKNOWN_MACHINE), said.line.at_ns)
        elif field[1] == "ip" and pid is not None:
            dead.pop(Process(pid, UNKNOWN_MACHINE), None)
            dead.setdefault(Process(pid, Machine(field[2])), said.line.at_ns)
        field = _FIELD.fullmatch((yield True).text)


def _mpi_process(said: Said, attempt: Attempt) -> Report | None:
    """The line that says how it ended comes later."""
    rank, pid = said.number("rank", 7), said.number("pid")
    if rank is None:
        attempt.elastic = True  # under srun, a task is one of Hydra's proxies
        rank = attempt.processes.of_pid(pid, said.line.machine)
    elif pid is not None:
        attempt.of(rank).runs_as(said.text("host"), pid)
    if rank is not None:
        return _how_it_ended(rank, said, attempt)
    attempt.claim("launcher_failure", said.line, certain=False)
    return None


def _how_it_ended(rank: int, said: Said, attempt: Attempt) -> Report:
    """MPICH reports the first process of its list that ended badly, and kills all others (SIGKILL)
    once one has failed: usually the reported one is not the one that failed first.
    """
    line = yield True
    while True:
        code, ended = _MPI_CODE.search(line.text), _HYDRA_END.search(line.text)
        if code:
            attempt.of(rank).ended(int(code[1]), said.line.at_ns)
        elif ended and ended["how"] == "EXIT CODE" and ended["number"] in ("9", "15"):
            attempt.claim("launcher_failure", line, certain=False)
        elif ended:
            number, is_code = int(ended["number"]), ended["how"] == "EXIT CODE"
            attempt.of(rank).ended(number if is_code else -number, said.line.at_ns)
        else:
            line = yield False
            continue
        yield True
        return


def _composer_stops(said: Said, attempt: Attempt) -> None:
    """Composer reports which rank failed first, stops the others, and reports how each ended."""
    code, notes = int(said.text("code")), attempt.of(said.number("rank", 7) or 0)
    notes.runs_as(None, said.number("pid"))
    if code and not notes.has_ended:
        notes.ended(code, said.line.at_ns)
        notes.by_launcher = code in (-signals.SIGTERM, -signals.SIGKILL)


def _gone(said: Said, attempt: Attempt) -> None:
    """A process is gone, with whatever status: Open MPI names the first that left without
    finalizing MPI, and then ends the others; vLLM's executor found a worker dead."""
    notes, pid = attempt.of(said.number("rank", 7) or 0), said.number("pid")
    if pid is not None:
        notes.runs_as(said.text("host"), pid)
    if not notes.has_ended:
        of_mpi, of_vllm = (
            "it left without finalizing MPI, says mpirun",
            "its process died, says vLLM",
        )
        notes.died(said.line.at_ns, of_mpi if pid is not None else f"{of_vllm}, and not how")


def _shell_alone(said: Said, attempt: Attempt) -> bool:
    """A shell's message about the end of its child, often after a progress bar."""
    if said.line.rank is not None or said.line.local_rank is not None:
        return False
    if "srun: error:" in said.line.text:
        return False  # it is about tasks
    # A server that makes no progress is killed, by itself or by whoever started it.
    silent = any(said.claim.details.silence for said in attempt.stated)
    attempt.claim("other" if silent else "launcher_failure", said.line, certain=False)
    return True


def _mpich(said: Said, attempt: Attempt) -> None:
    """MPICH's "node" is a rank of the world; a failure inside a call may be a peer's fault."""
    rank = said.number("rank", 7) or 0
    notes = attempt.of(rank)
    if said.text("what").startswith("application called"):
        notes.ended(abs(int(said.text("code"))) % 256 or 1, said.line.at_ns)
    else:
        attempt.claim("network_error", said.line, reporter=rank, certain=False)


# fmt: off
RAY = (
    row("raylet-worker-died", "end",
        r"(?:Worker IP address: (?P<ip>[\w.:\-]{1,60}) .{0,80}?)?Worker PID: (?P<pid>\d{1,9}) "
        "Worker exit type: SYSTEM_ERROR", _raylet,
        "Worker PID: 4711 Worker exit type: SYSTEM_ERROR Worker exit detail: ...",
        "Worker IP address: 10.0.0.7 Worker port: 10005 Worker PID: 4711 Worker exit type: "
        "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits"),
    row("ray-train-worker", "process",
        r"\bip=(?P<ip>[\w.:\-]{1,60}), pid=(?P<pid>\d{1,9})\) world_rank=(?P<rank>\d{1,7})\b",
        _worker, "- (node_id=8f, ip=10.0.0.7, pid=4711) world_rank=3, local_rank=1, node_rank=0"),
    row("ray-actor-died", "end",
        r"The actor died unexpectedly|The actor is dead because its worker process|"
        r"The actor died because of an error raised in .{0,200}?\(pid=(?P<pid>\d{1,9})\b"
        r"(?:, ip=(?P<ip>[\w.:\-]{1,60}))?", _actor,
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."),
)
ROWS = (
    row("process-ended", "end", (
        r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on signal "
        r"(?P<signal>\d+)",
        r"(?P<host>[\w.\-]{1,200}): rank (?P<task>\d{1,7}) "
        r"(?:died from signal (?P<signal>\d{1,2})|exited with code (?P<code>\d{1,3}))\b",
        r"ProcessExitedException: process (?P<local>\d{1,6}) terminated with "
        r"(?:signal SIG(?P<name>\w+)|exit code (?P<code>\d{1,3}))",
        r"MPI_ABORT was invoked on rank (?P<rank>\d{1,7})\b",
        r"^(?:ERROR:[\w.]+:)?Rank (?P<rank>\d{1,7}) crashed with exit code (?P<code>-?\d{1,4})\.",
        r"(?:\[rank: (?P<local>\d{1,4})\] )?Child process with PID (?P<pid>\d{1,9}) terminated "
        r"with code (?P<code>-?\d{1,4})\.",
        r"Worker \w+ pid (?P<pid>\d{1,9}) died, exit code: (?P<code>-?\d{1,4})",
        r": line \d+: +(?P<pid>\d{1,9}) (?P<how>Killed|Segmentation fault|Bus error|Aborted)\b",
        ), ended,
        "mpirun noticed that process rank 2 with PID 4711 on node n1 exited on signal 9 (Killed).",
        "x1001c0s2b0n0.hostmgmt: rank 3 died from signal 9",
        "x1001c0s2b0n0.hostmgmt: rank 3 exited with code 1",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal "
        "SIGKILL",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code "
        "3",
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
        "ERROR:composer.cli.launcher:Rank 3 crashed with exit code 1.",
        "[rank: 1] Child process with PID 4711 terminated with code 1. Forcefully terminating all "
        "other processes to avoid zombies",
        "Worker VllmWorkerProcess pid 4711 died, exit code: -15",
        "run.sh: line 12: 4711 Killed                  python3 train.py"),
    row("mpich-abort", "end",
        r"Abort\((?P<code>-?\d{1,12})\) on node (?P<rank>\d{1,7}) \(rank \d{1,7} in comm \d{1,12}"
        r"\): (?P<what>.{1,40})", _mpich,
        "Abort(1) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1)"),
    row("spawn-error", "end", r"-- Process (?P<local>\d{1,6}) terminated with the following error:",
        _spawn_error, "-- Process 2 terminated with the following error:"),
    row("deepspeed-exit", "end",
        r"--local[_-]rank[=', ]+(?P<local>\d{1,4})\b.*exits with return code = (?P<code>-?\d{1,4})",
        _deepspeed,
        "['/usr/bin/python3', '-u', 'train.py', '--local_rank=3'] exits with return code = -9"),
    row("mpi-process", "end", (
        r"Process name:\s+\[(?:\[\d+,\d+\],|[\w.\-]+@\d+,)(?P<rank>\d{1,7})\]",
        r"RANK (?P<rank>\d{1,7}) PID (?P<pid>\d{1,9}) RUNNING AT (?P<host>\S+)",
        r"^\W*PID (?P<pid>\d{1,9}) RUNNING AT (\S+)",
        ), _mpi_process,
        "  Process name: [[51234,1],2]", "  Process name: [prterun-n0-4711@1,2]",
        "=   RANK 2 PID 4711 RUNNING AT node1", "=   PID 4711 RUNNING AT node1"),
    row("process-gone", "end", (
        r"has exited due to process rank (?P<rank>\d{1,7}) with PID (?P<pid>\d{1,9}) on"
        r"(?: node (?P<host>\S+)|\s*$)",
        r"Worker proc VllmWorker-(?P<rank>\d{1,5}) died unexpectedly"), _gone,
        "prterun has exited due to process rank 2 with PID 4711 on node n0 exiting",
        "mpirun has exited due to process rank 2 with PID 4711 on",
        "Worker proc VllmWorker-1 died unexpectedly, shutting down executor."),
    row("composer-exit", "end",
        r"^(?:ERROR:[\w.]+:)?Global rank (?P<rank>\d{1,7}) \(PID (?P<pid>\d{1,9})\) exited with "
        r"code (?P<code>-?\d{1,4})", _composer_stops,
        "Global rank 2 (PID 4711) exited with code -15"),
    row("shell-killed", "end",
        r"(?:^|[\])%\s])Killed\s*$|^Segmentation fault \(core dumped\)\s*$", _shell_alone, "Killed",
        "Segmentation fault (core dumped)"),
    row("something-ended", "end",
        r"CalledProcessError: Command .* (?:returned non-zero exit status -?\d|died with <Signals)|"
        r"has been marked dead because the detector has missed too many heartbeats|"
        r"resources failed with non-zero exit code|^Error: failed to run torchrun |"
        r"[OP]RTE has lost communication with a remote daemon|"
        r"\bEvicted +pod/|The node was low on resource|\bNodeNotReady\b|"
        r"the node \(where this task was running\) +was dead|srun: error: Node failure on |"
        r"nvshmem initialization failed, exiting",
        claim("launcher_failure"),
        "subprocess.CalledProcessError: Command '['python3', 'train.py']' returned non-zero exit "
        "status 1.",
        "The node with node id: 8f has been marked dead because the detector has missed too many "
        "heartbeats from it.", "srun: error: Node failure on node7",
        "init.cu:nvshmemi_check_state_and_init:1117: nvshmem initialization failed, exiting"),
    row("no-sign-of-life", "timeout",
        r"No available (?:shared memory broadcast )?block found in \d+ second|"
        r"reason=\[(?:task|stream sync) timeout\]|hccl fftsplus task timeout occurred|"
        r"atchdog timeout \(self\.watchdog_timeout=|"
        r"RPC ran for more than (?:set timeout|\d+ milliseconds)|"
        r"TPU backend initialization is taking more than|"
        r"Hang detected on rank (?P<rank>\d{1,7}) in PyExec",
        claim("timeout", ClaimDetails(silence=True)),
        "No available shared memory broadcast block found in 60 seconds.",
        "The error from device(chipId:5, dieId:0), hccl fftsplus task timeout occurred during task "
        "execution", "Watchdog timeout (self.watchdog_timeout=300)",
        "RPCErr:1:RPC ran for more than set timeout (60000 ms) and will now be marked with an "
        "error"),
    row("told-to-stop", "stopped",
        r"Received (?:Signals\.)?(?:(?P<signal>\d{1,2})|SIG(?P<name>\w{1,8})) death signal|"
        r"SignalException: Process \d+ got signal: (?:Signals\.)?(?P<got>\d{1,2}|SIG\w{1,8})|"
        r"(?:STEP|JOB) [\w.]+ ON \S+ CANCELLED AT|(?:^|\] )Received SIGTERM: 15", stopped,
        "Received Signals.SIGTERM death signal, shutting down workers",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1187 got signal: "
        "15",
        "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-05-02T08:10:11 DUE TO TIME LIMIT "
        "***"),
)
# fmt: on
