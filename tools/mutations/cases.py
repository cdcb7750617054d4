"""One case: a mutated job, a command on it, and what must hold whatever the command says."""

from __future__ import annotations

import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from tools.mutations.files import make_job

MOST_S = 10.0
MOST_BYTES = 1 << 30
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command has ended."""

    status: int
    out: bytes
    err: bytes
    cpu_s: float
    """Of the command and the processes that it has waited for."""
    peak_bytes: int
    """The largest resident size of any of them."""
    hung: bool = False


def arguments_for(job: Path, rng: random.Random) -> list[str]:
    """A command that reads a job."""
    if (job / "expected.toml").exists() and rng.random() < 0.7:
        return ["replay", str(job), *rng.choice(([], ["--json"], ["-v"]))]
    archives = [str(path) for path in job.iterdir() if path.suffix in (".tar", ".tgz", ".zip")]
    paths = archives or [str(job)]
    out = str(job.parent / "out")
    form = rng.choice(("flight-recorder", "perfetto", "html", "fixture"))
    redact = ["--redact"] if form == "fixture" and rng.random() < 0.5 else []
    return rng.choice(
        [["analyze", *paths, "--json"]] * 6
        + [
            ["analyze", *paths], ["analyze", *paths, "--all", "--rank", "0"],
            ["analyze", *paths, "--html", out],
            ["export", *paths, "--to", form, "-o", out, *redact],
            ["doctor", "--run", paths[0], "--json"],
        ]
    )  # fmt: skip


def run_forked(arguments: Sequence[str], place: Path, most_s: float) -> Ending:
    """Run the command line in a fork of this process, which has imported everything already."""
    out, err = place / "stdout", place / "stderr"
    pid = os.fork()
    if pid == 0:
        _become(arguments, out, err)
    return _wait_for(pid, out, err, most_s)


def run_apart(arguments: Sequence[str], place: Path, most_s: float) -> Ending:
    """Run the command as users do."""
    out, err = place / "stdout", place / "stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "hangscope", *arguments], stdout=stdout, stderr=stderr,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    return _wait_for(process.pid, out, err, most_s)


def _become(arguments: Sequence[str], out: Path, err: Path) -> None:
    status = 99
    try:
        _limit_files()
        os.setsid()
        for descriptor, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            stream = open(descriptor, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        sys.argv = ["hangscope", *arguments]
        from hangscope.cli import main

        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _wait_for(pid: int, out: Path, err: Path, most_s: float) -> Ending:
    # On a machine that does other things, too, only the time on the CPU says anything, and the time
    # in which no process of the command even asked for one.
    began, hung, used_s = time.monotonic(), False, dict[str, float]()
    descriptor = os.pidfd_open(pid)
    while not select.select([descriptor], [], [], 0.5)[0]:
        used_s |= _used_or_queued_s(pid)
        waited_s = time.monotonic() - began - sum(used_s.values())
        if _cpu_of(pid) > most_s or waited_s > most_s:
            hung = True
            os.killpg(pid, signal.SIGKILL)
            break
    os.close(descriptor)
    _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return Ending(
        code, out.read_bytes(), err.read_bytes(), used.ru_utime + used.ru_stime,
        used.ru_maxrss * 1024, hung or used.ru_utime + used.ru_stime > most_s,
    )  # fmt: skip


def _used_or_queued_s(session: int) -> dict[str, float]:
    """How long each process of a session has had a CPU or waited for one (``schedstat``)."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/schedstat"):
        try:
            fields = (path.parent / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == session:
                found[path.parent.name] = sum(map(int, path.read_text().split()[:2])) / 1e9
        except OSError:
            continue
    return found


def _cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def faults(arguments: Sequence[str], end: Ending) -> list[str]:
    """What a command must never do, whatever it reads."""
    out, err = end.out.decode("utf-8", "replace"), end.err.decode("utf-8", "replace")
    found = []
    if "Traceback (most recent call last)" in err or "internal error" in err:
        found.append(f"traceback: {err.strip().splitlines()[-1][:300]}")
    if end.status not in (0, 1, 2):
        found.append(f"exit status {end.status}")
    if end.hung:
        found.append(f"took {end.cpu_s:.1f} s of CPU, or waited")
    if end.peak_bytes > MOST_BYTES:
        found.append(f"took {end.peak_bytes >> 20} MiB")
    if _CONTROLS.search(out + err):
        found.append("printed control characters")
    return found + _wrong_status(arguments, end.status, out, err)


def _wrong_status(arguments: Sequence[str], status: int, out: str, err: str) -> list[str]:
    if status == 2:
        lines = [line for line in err.splitlines() if not line.startswith("hangscope: ")]
        return ["status 2 without one line on stderr"] if not err.strip() or lines[1:] else []
    if arguments[0] == "analyze" and "--json" in arguments and status in (0, 1):
        verdict = orjson.loads(out)["verdict"]
        return [f"status {status} for {verdict}"] if (status == 0) != (verdict == "healthy") else []
    return []


def run_case(seed: int, number: int, folder: Path, *, apart: bool = False) -> list[str]:
    """Make and run one case in a folder; returns what went wrong, with the command."""
    rng = random.Random(f"{seed}/{number}")
    job = folder / "job"
    shutil.rmtree(folder, ignore_errors=True)
    job.mkdir(parents=True)
    make_job(job, rng)
    arguments = arguments_for(job, rng)
    end = (run_apart if apart else run_forked)(arguments, folder, MOST_S)
    return [f"{fault}  [{' '.join(arguments)}]" for fault in faults(arguments, end)]


def _limit_files() -> None:
    """No case may fill the disk."""
    most = 4 << 30
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
