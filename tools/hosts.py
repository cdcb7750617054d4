"""``python -m tools.hosts``: real jobs on pretended hosts, which fail in the ways hosts do.

A host is a network namespace with its own address, host name and process ids, linked to the others
by a switch (`tools.host_network`). Killing the first process of a host kills all of it. Needs root,
``ip`` (iproute2) and ``unshare`` (util-linux).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hangscope
from hangscope.trace.digests.hosts import HostMap
from tools.host_cases import CASES, DRAIN_S, RANKS, Case
from tools.host_network import ADDRESS, Hosts

MEET_S = 300.0
"""How long the monitors may take to meet: theirs are the processes that a crowded machine keeps
waiting."""
MOST_STEPS_S = 400.0
"""How long ten steps may take over slow links."""
_SRUN = f"""
export LOCAL_WORLD_SIZE={RANKS} TORCHELASTIC_RUN_ID=absent
for LOCAL_RANK in 0 1; do
    export LOCAL_RANK RANK=$((NODE * {RANKS} + LOCAL_RANK))
    {sys.executable} "$1" &
done
wait
"""
_JOB = """
import os, signal, sys, time, torch, torch.distributed as dist
from datetime import timedelta

def is_time(rank):
    return rank == 3 and os.path.exists(os.environ["GO"])

def load_batch(rank):
    if is_time(rank):
        fault = os.environ.get("FAULT", "")
        if fault == "asleep": time.sleep(3600)
        if fault == "stopped": os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "killed": os.kill(os.getpid(), signal.SIGKILL)

dist.init_process_group("gloo", timeout=timedelta(seconds=600))
rank, step, left = dist.get_rank(), 0, int(os.environ["STEPS"])
while left:
    load_batch(rank)
    if is_time(rank) and os.environ.get("FAULT") == "wrong":
        dist.broadcast(torch.ones(4), 0)
    seen = torch.tensor([1.0, 1.0, 1.0, float(os.path.exists(os.environ["GO"]))])
    dist.all_reduce(seen)
    left -= int(seen[3] > 0)
    if rank % 2 == 0:
        print("step", step, flush=True)
    step += 1
    time.sleep(0.2)
print("done", flush=True)
"""


def unavailable() -> str:
    """Why no hosts can be pretended here; empty if they can."""
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is missing"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    try:
        with Hosts(1):
            return ""
    except (subprocess.CalledProcessError, OSError) as error:
        return f"no network namespaces: {getattr(error, 'stderr', error)}".strip()


@contextlib.contextmanager
def job(
    hosts: Hosts, place: Path, case: Case, *, shared: bool, rendezvous: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The job on all hosts: one launcher each, its output in ``place/nodeN.log``."""
    script = place / "job.py"
    script.write_text(_JOB)
    (place / "tmp").mkdir()
    if case.skew_s:
        source = str(Path(__file__).with_name("ahead.c"))
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", str(place / "ahead.so"), source], check=True
        )
    names = place / "hosts"
    listed = [f"{ADDRESS.format(n + 1)} node{n}\n" for n in range(len(hosts.names))]
    names.write_text("127.0.0.1 localhost\n" + "".join(listed))
    started = []
    for number, name in enumerate(hosts.names):
        meeting = (
            [f"--node-rank={number}", f"--master-addr={ADDRESS.format(1)}", "--master-port=29555"]
            if rendezvous == "static"
            else ["--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESS.format(1)}:29556",
                  "--rdzv-id=hosts", f"--local-addr={ADDRESS.format(number + 1)}"]
        )  # fmt: skip
        torchrun = [
            sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(hosts.names)}",
            f"--nproc-per-node={RANKS}", *meeting, str(script),
        ]  # fmt: skip
        command = [
            "ip", "netns", "exec", name, "unshare", "--uts", "--pid", "--fork", "--mount-proc",
            "--kill-child", "sh", "-c",
            f'hostname node{number}; mount --bind {names} /etc/hosts; "$@" & wait'
            + "; sleep 20" * case.outlives, "sh",
            *(torchrun if case.absent is None else ["sh", "-c", _SRUN, "sh", str(script)]),
        ]  # fmt: skip
        if number == case.absent:
            command = ["sleep", "600"]
        environment = {
            **os.environ, "HANGSCOPE": "1", "HANGSCOPE_TIMEOUT": str(case.timeout_s),
            "HANGSCOPE_DIR": str(place / ("run" if shared else f"run{number}")),
            "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "HANGSCOPE_NOTICE": "0",
            "FAULT": case.fault, "GO": str(place / "go"),
            "STEPS": "100000" if case.fails else "10", "TMPDIR": str(place / "tmp"),
            # The c10d rendezvous itself does not work with clocks further apart.
            **({"LD_PRELOAD": str(place / "ahead.so"),
                "AHEAD_S": f"{case.skew_s if rendezvous == 'static' else 10:.0f}"}
               if case.skew_s and number == 1 else {}),
            **({"MASTER_ADDR": ADDRESS.format(1), "MASTER_PORT": "29555", "NODE": str(number),
                "WORLD_SIZE": str(RANKS * len(hosts.names))} if case.absent is not None else {}),
        }  # fmt: skip
        with open(place / f"node{number}.log", "wb") as log:
            started.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            )
    try:
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def run(
    name: str, *, shared: bool, rendezvous: str, patience_s: float = 90.0, hosts: int = 3
) -> dict[str, Any]:
    """One case; returns what each host's log says, and after how many seconds."""
    case, place = CASES[name], Path(tempfile.mkdtemp(prefix="hangscope-hosts-"))
    with Hosts(hosts) as network, job(
        network, place, case, shared=shared, rendezvous=rendezvous
    ) as started:  # fmt: skip
        if case.absent is None:
            _wait(lambda: "step 14" in _log(place, 0) or started[0].poll() is not None, 300)
        if case.absent is None:  # until the monitors have met
            _wait(lambda: len(_meetings(place, hosts)) >= hosts - 1, MEET_S)
        (place / "go").touch()
        failed_s = time.monotonic()
        if case.kill is not None:
            started[case.kill].kill()
        if case.cut is not None:
            network.switch.cut.add(case.cut)
        if case.drained is not None:
            _signal(network, case.drained, started, signal.SIGTERM)
        network.switch.delay_s, network.switch.loss = case.delay_s, {1: case.loss}
        survivors = [n for n in range(hosts) if n not in (case.kill, case.absent)]
        first: dict[int, float] = {}
        restored, drains = not case.back_after_s, case.drained is not None

        def is_over() -> bool:
            nonlocal restored, drains
            passed_s = time.monotonic() - failed_s
            if drains and passed_s > DRAIN_S and case.drained is not None:
                _signal(network, case.drained, started, signal.SIGKILL)
                drains = False
            if not restored and passed_s > case.back_after_s and case.cut is not None:
                network.switch.cut.clear()
                restored = True
            for number in survivors:
                if number not in first and _said(place, number):
                    first[number] = round(passed_s, 1)
            if not case.fails:
                return all(process.poll() is not None for process in started)
            return (
                restored
                and not drains
                and all(_is_right(case, place, number) for number in survivors)
            )

        _wait(is_over, patience_s + case.back_after_s if case.fails else MOST_STEPS_S)
        right = {n: _is_right(case, place, n) for n in survivors}
    merged = _merged(place)
    return {
        "case": name,
        "shared": shared,
        "rendezvous": rendezvous,
        "right": right,
        "innocents": {n: _innocents(case, _said(place, n)) for n in survivors},
        "merged": merged,
        "merged_right": set(merged["culprits"]) <= case.guilty,
        "first_word_s": first,
        "said": {n: _said(place, n)[:6] for n in survivors},
        "place": str(place),
    }


def _signal(
    hosts: Hosts, number: int, started: list[subprocess.Popen[bytes]], signal_number: int
) -> None:
    """Send a signal to all processes of a host, but not to the one that holds it."""
    listed = subprocess.check_output(["ip", "netns", "pids", hosts.names[number]], text=True)
    for pid in {*map(int, listed.split())} - {process.pid for process in started}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)


def _meetings(place: Path, least: int) -> set[Path]:
    """What this job's monitors have been told about hosts, at least so many of them."""
    found = set()
    for path in (place / "tmp").glob("hangscope-relay-*/in/hosts"):
        with contextlib.suppress(OSError, ValueError):  # just replaced
            if len(HostMap.decode(path.read_bytes()).hosts) >= least:
                found.add(path)
    return found


def _merged(place: Path) -> dict[str, Any]:
    """What the folders of all hosts say together."""
    folders = sorted(map(str, place.glob("run*")))
    command = [sys.executable, "-m", "hangscope", "analyze", "--json", "--brief", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        said = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"summary": done.stderr[-300:], "culprits": []}
    return {name: said[name] for name in ("verdict", "summary", "culprits", "hosts", "notes")}


_ACCUSED = re.compile(
    r"\b[Rr]anks? ((?:\d+(?:–\d+)?(?:, | and )?)+)[^.;:]*?"
    r"(?:crashed|never joined|killed|stopped|exited|fell silent|left no)"
)
_SILENT = re.compile(r"[Hh]osts? (node\d+)[^.;:]* fell silent")


def _innocents(case: Case, lines: list[str]) -> list[str]:
    """Lines that accuse a rank or a host that did nothing."""
    found = []
    for line in lines:
        accused = set()
        for match in _ACCUSED.finditer(line):
            for first, last in re.findall(r"(\d+)(?:–(\d+))?", match[1]):
                accused |= set(range(int(first), int(last or first) + 1))
        hosts = {int(match[1][4:]) for match in _SILENT.finditer(line)}
        if not accused <= case.guilty or not hosts <= {rank // RANKS for rank in case.guilty}:
            found.append(line)
    return found


def _is_right(case: Case, place: Path, number: int) -> bool:
    said = _said(place, number)
    if not case.fails:
        return not said and "done" in _log(place, 0)
    itself = number in (case.cut, case.drained) and case.others
    wanted = case.others if itself else case.says
    return any(re.search(wanted, line) for line in said)


def _log(place: Path, number: int) -> str:
    return (place / f"node{number}.log").read_text(errors="replace")


def _said(place: Path, number: int) -> list[str]:
    return [line for line in _log(place, number).splitlines() if "[hangscope]" in line]


def _wait(condition: object, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s and not condition():  # type: ignore[operator]
        time.sleep(0.2)


def _wrongs(found: dict[str, Any]) -> list[str]:
    """What is wrong with a cell of the matrix."""
    silent = [f"node{n} does not say it" for n, right in found["right"].items() if not right]
    accused = [f"node{n} accuses: {line}" for n, lines in found["innocents"].items()
               for line in lines]  # fmt: skip
    merged = [] if found["merged_right"] else [f"merged: {found['merged']['summary']}"]
    return silent + accused + merged


def _version() -> str:
    """Of the code that is measured: changes with any of its files."""
    digest = hashlib.sha256()
    for path in sorted(Path(hangscope.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _known_right(out: Path | None, version: str) -> set[tuple[Any, ...]]:
    """The cells in a file of results that were right with this version."""
    lines = out.read_text().splitlines() if out is not None and out.exists() else []
    rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if row["version"] == version and not row["wrong"]]
    return {(row["case"], row["shared"], row["rendezvous"]) for row in rows}


def main() -> int:
    """Run cases one after the other; the exit status says whether all were right."""
    parser = argparse.ArgumentParser(prog="python -m tools.hosts", description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--shared", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--rendezvous", choices=("static", "c10d", "both"), default="both")
    parser.add_argument("--patience", type=float, default=90.0)
    parser.add_argument(
        "--out", type=Path, help="append each result as a line of JSON; what is right there "
        "already, with the code as it is, is not run again",
    )  # fmt: skip
    arguments = parser.parse_args()
    why = unavailable()
    if shutil.which("cc") is None and any(CASES[name].skew_s for name in arguments.cases):
        why = why or "a C compiler (cc) is missing, which the case skew needs"
    if why:
        print(why)
        return 2
    version, all_right = _version(), True
    known = _known_right(arguments.out, version)
    for name, shared, rendezvous in itertools.product(
        arguments.cases, (False, True), ("static", "c10d")
    ):
        if arguments.shared not in ("both", "yes" if shared else "no"):
            continue
        if arguments.rendezvous not in ("both", rendezvous) or (name, shared, rendezvous) in known:
            continue
        found = run(name, shared=shared, rendezvous=rendezvous, patience_s=arguments.patience)
        wrong = _wrongs(found)
        all_right &= not wrong
        if arguments.out is not None:
            with open(arguments.out, "a", encoding="utf-8") as file:
                file.write(json.dumps({"version": version, "wrong": wrong, **found}) + "\n")
        words = sorted(found["first_word_s"].values())
        said = f"{words[0]}–{words[-1]} s" if words else "silent"
        where = "shared" if shared else "separate"
        print("WRONG" if wrong else "right", name, where, rendezvous, said, flush=True)
        for line in wrong:
            print(f"  {line}", flush=True)
        if wrong:
            print(f"  {found['place']}", flush=True)
        else:
            shutil.rmtree(found["place"])
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
