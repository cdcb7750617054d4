"""The lines of job logs that HangScope reads, as a page of the documentation.

python -m tools.log_lines          # writes docs/log-lines.md, as `make pages` does
"""

from __future__ import annotations

from pathlib import Path

from hangscope.trace.job_log.rows.row import Row
from hangscope.trace.job_log.rows.table import ROWS
from tools.verdict_pages import write_changed

PAGE = Path(__file__).resolve().parent.parent / "docs" / "log-lines.md"
_NUMBERS = ("rank", "place", "local", "task", "pid")
_HEAD = """# Lines of job logs

Every kind of line that `hangscope analyze` reads, one row each. Prefixes of launchers and
collectors are taken off before. Tracebacks, stacks, torch elastic's failure table, NCCL's RAS
reports and operations that are announced as they are issued are read by code of their own
(`hangscope/trace/job_log/readers`). Made by `make pages`.

A new kind of line is one row in `hangscope/trace/job_log/rows`: its expression, what it states,
what to do with it, and lines from real logs, which are its tests.

| line | states | numbers | since | for example |
|---|---|---|---|---|
"""
_JUDGED = """
## How far it gets with what people post

Seven times, public reports of hangs were searched for in issue trackers, none of them behind a
test, and given to `hangscope analyze` one by one, each as far as it was found. What a careful
expert would say was set against it. The standard is "right, or honest": a rank is named only if the
evidence shows it, else the report says what is known.

| first to seventh: logs, other | 21, 22 | 21, 21 | 25, 30 | 20, 22 | 18, 38 | 5, 45 | 27, 23 |
|---|---|---|---|---|---|---|---|
| right: names the rank, difference or call that is shown | 12 | 12 | 12 | 10 | 10 | 2 | 2 |
| honest: says who waits where, names nobody | 26 | 14 | 22 | 14 | 29 | 28 | 32 |
| weak: says less than the evidence, or more than an excerpt shows | 4 | 7 | 8 | 5 | 4 | 5 | 5 |
| refused: no line that HangScope knows, or helpers' stacks only | 1 | 9 | 13 | 12 | 12 | 15 | 11 |
| wrong name | 0 | 0 | 0 | 1 | 1 | 0 | 0 |

"Other" are py-spy, faulthandler, gdb and lldb stacks, `ncclras`, NCCL's own lines, lists of a
debugger or of processes, stall reports of Horovod. The later searches chose more of what had not
been tried: native frames, damaged and cut reports, dumps of single threads. Of the third, 2 of the
refused and 4 of the weak are logs. Each figure is that of the first try, counted before anything
was mended, and by whoever mended it. Afterwards whole kinds were mended. Of the sixteen weak and
refused ones of the second search six are still refused and two still weak. Of the 21 of the third
nine are refused still: gdb's stacks with nothing but threads of libraries (three) or of the
interpreter (one), frames without the line above them that says what they are, threads of helpers, a
launcher's tags inside its own lines, and two logs that end before anything waits; three are still
weak: a log retyped with words left out, a cut line of a second rank, and a rank that only a
framework's message names.

Of the fourth search only what the search itself shows of a report was read, a thousand characters
of most, so that many begin or end in the middle. The wrong name was a rank on one node for a worker
of Ray's that had died on another, with the same process id; the raylet states the address, which is
read now. Of its 18 that were weak, refused or wrong ten are refused still (gdb's threads of
libraries or only a list of them, four; frames of a C++ error without its message; a report of
torch's that it cannot report; a box cut off before the error; threads of helpers; two that end
before anything waits) and three weak: a batch of unknown sizes in which one of two ranks is left
out of the first sentence, a stuck watchdog that the end of another process hides, and Paddle's
C++ traceback.

The fifth search was read in the same way; its logs were all right or honest. The wrong name was the
first rank, in NCCL's announcements whose lines two processes had torn apart: what is missing there
had been taken for a difference. Afterwards 12 are right, 39 honest, one weak (a rank that only the
message above a traceback names) and four refused: gdb's threads of libraries (two), the middle of
tracebacks, and MPICH's list of pending requests. No name is wrong. What was mended: announcements
of processes whose ranks nothing tells, a second report that empties the first, stacks without a
main thread's name, stacks that a watchdog takes of its own process, a traceback that is cut off,
and the words of three more libraries (Alibaba's monitor, HCCL's task timeouts, Neuron's sockets).

For the sixth, what no earlier search had tried was looked for: other accelerators, inference
engines, RPC, UCX, quorums, Slurm alone; only five of its reports are plain logs of NCCL's watchdog.
Afterwards 2 are right, 45 honest and three refused (frames of py-spy's without the line above them,
two, and threads of XLA's that wait for a lock). No name is wrong. What was mended: tracebacks whose
beginning is missing, or stands behind other words; processes of an engine that compute nothing;
what is killed after it fell silent; an abort beside a device that failed; the time that mpirun
prints; and the words of torch's RPC, torchft, UCX, libtpu and AMD's driver.

For the seventh, launchers, schedulers and frameworks of 2025 and 2026 were looked for, and the
middles of excerpts: ten of its reports are lines of NCCL's watchdog or tables of torchrun. Its
eleven refusals were hangs of a start (an engine, Ray's workers, TensorRT-LLM's processes), the
words of five libraries (Monarch, NVSHMEM twice, JAX's coordination service, NCCL's socket that a
stranger found, Kubeflow's operator), threads of NCCL's proxy, and gdb's list of threads.
Afterwards 2 are right, 45 honest and three refused: the list of threads, NVSHMEM's trace of a
barrier, and a start that ends before anything waits. No name is wrong. What was mended: white
space behind a column of hosts belongs to the line, so that tracebacks keep their source lines;
frames without a head say which line of user code called them, and of which rank they are; a
timeout whose line is cut off behind its sizes counts; gdb's frames may be cut, too; where only a
meeting failed, the report says what to look at in the launchers' logs instead of naming variables
of the flight recorder; NCCL's variables are named where NCCL was seen. Five rows were united with
others.

Exceptions that a job handles were put into 24 recorded logs, in seven ways for each of three ranks:
42 of the 168 answers changed, most to a crash of a rank that had not crashed. Since progress of the
same writer below a traceback counts, none of 312 do (with a device's lack of memory as well).

Twenty more logs, with launchers' messages and tables, were looked at for wrong names alone. There
was one: a process that left with status 1 was taken for the cause of timeouts that stood above its
end. Its launcher would have ended the others at once, had it left before them; that is now known.

How fast a gigabyte is read is [among the benchmarks](benchmarks-analyze.md#job-logs).
"""
_REMOVED = """
## No longer read

Kinds of lines that no recorded log and no public report stands behind have been removed:

| was | printed by |
|---|---|
| `_pmiu_daemon(SIGCHLD): [NID ...] PE RANK 3 exit signal Killed` | Cray's aprun |
| `ERROR: One or more process (first noticed rank 3) terminated with signal 9` | IBM's jsrun |
| `Container rank 1 status failed cmd [...] code -9` | Paddle's launcher, which starts no torch |
| `TERM_MEMLIMIT: job killed`, `=>> PBS: job killed`, a table of `sacct` | LSF, PBS, Slurm |
| `[RankMonitorServer:Rank=3] Did not get subsequent heartbeat.` | NVIDIA's resiliency extension |
| long lines in parts marked with `P` and `F` | containerd's own files on a node |
| `<13>1 2025-08-16T11:00:00Z host app 7 - - ` and `{pod="..."} ` in front of lines | collectors |
| constant words in front of a column of pods | `stern -A` |
| `trainer/3 ` in front of lines (`[trainer1\\|3]:` is still read) | TorchX |

Of what is left, the kinds whose origin was in doubt were searched for: every one has a public
report (Determined's and milabench's columns, PALS, Composer, userbuffers).
"""
_LONGEST = 160


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(map(_line, ROWS)) + _JUDGED + _REMOVED


def write(path: Path = PAGE) -> None:
    """Write the page."""
    write_changed(path, page())


def _line(row: Row) -> str:
    numbers = ", ".join(
        name for name in _NUMBERS if name in {group.split("__")[0] for group in row.line.groupindex}
    )
    example = row.examples[0]
    shown = example if len(example) <= _LONGEST else example[: _LONGEST - 3] + "..."
    quoted = "``" + shown.strip().replace("|", "\\|") + "``"
    return f"| {row.id} | {row.states} | {numbers} | {row.since} | {quoted} |\n"


if __name__ == "__main__":
    write()
