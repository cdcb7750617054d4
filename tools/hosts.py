"""``python -m tools.hosts``: real jobs on pretended hosts, which fail in the ways hosts do.

A host is a network namespace with its own address, host name and process ids, linked to the others
by a bridge in a namespace of its own, the switch. Killing the first process of a host kills all of
it; taking a link of the switch down cuts it off. Needs root, ``ip`` and ``tc`` (iproute2) and
``unshare`` (util-linux).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hangscope.trace.digests.hosts import HostMap

RANKS = 2
ADDRESS = "10.78.0.{}"
FAKETIME = next(map(str, Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), "")
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
rank = dist.get_rank()
for step in range(int(os.environ["STEPS"])):
    load_batch(rank)
    if is_time(rank) and os.environ.get("FAULT") == "wrong":
        dist.broadcast(torch.ones(4), 0)
    dist.all_reduce(torch.ones(4))
    if rank % 2 == 0:
        print("step", step, flush=True)
    time.sleep(0.2)
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to fail, and what must stand in the log of every survivor."""

    name: str
    says: str
    """A regular expression over each survivor's lines of HangScope."""
    fault: str = ""
    """What rank 3, on node 1, does once the monitors have met."""
    kill: int | None = None
    """The host that is killed, with its monitor."""
    cut: int | None = None
    """The host whose link is cut."""
    back_after_s: float = 0.0
    """After how long the link comes back; 0 for never."""
    slow: str = ""
    """Of all links: arguments of ``tc ... netem``."""
    others: str = ""
    """The same for what a host itself says that is cut off, if it says something else."""
    absent: int | None = None
    """The host that is never started. The ranks of the others are started without a launcher that
    would wait for it, as by ``srun``."""
    skew_s: float = 0.0
    """How far the clock of node 1 is ahead (libfaketime)."""

    @property
    def guilty(self) -> frozenset[int]:
        """The ranks that may be accused."""
        host = next((h for h in (self.kill, self.cut, self.absent) if h is not None), None)
        if host is not None:
            return frozenset(range(host * RANKS, (host + 1) * RANKS))
        return frozenset({3}) if self.fault else frozenset()

    @property
    def fails(self) -> bool:
        """Whether the job does not come to its end."""
        return bool(self.says)


CASES = {
    case.name: case
    for case in (
        Case("healthy", ""),
        Case("asleep", r"Rank 3 never joined all_reduce", fault="asleep"),
        Case("stopped", r"Rank 3 .*(?:stopped|never joined)", fault="stopped"),
        Case("killed", r"Rank 3 .*(?:killed|SIGKILL)", fault="killed"),
        Case("wrong", r"Rank 3 (?:issued|called|ran)|broadcast", fault="wrong"),
        Case("host-killed", r"[Hh]ost node1 \(ranks 2, 3\)", kill=1),
        Case("node0-killed", r"[Hh]ost node0 \(ranks 0, 1\)", kill=0),
        Case("link-cut", r"[Hh]ost node1 \(ranks 2, 3\)", cut=1,
             others=r"[Hh]ost node0 \(ranks 0, 1\) cannot be reached from here"),
        Case("node0-cut", r"[Hh]ost node0 \(ranks 0, 1\) cannot be reached from here", cut=0,
             others=r"[Hh]osts? node1|ranks 2–5 on other nodes, of which nothing is heard"),
        Case("link-back", r"moving again|goes on|[Hh]ost node1", cut=1, back_after_s=20,
             others=r"moving again|goes on|node0"),
        Case("slow", "", slow="delay 200ms loss 30%"),
        Case("absent", r"ranks 4, 5", absent=2),
        Case("skew", r"Rank 3 never joined all_reduce", fault="asleep", skew_s=3600),
    )
}  # fmt: skip


class Hosts:
    """Linked namespaces."""

    def __init__(self, count: int) -> None:
        self.switch = f"hs{os.getpid()}sw"
        self.names = [f"hs{os.getpid()}n{number}" for number in range(count)]

    def __enter__(self) -> Hosts:
        for name in (self.switch, *self.names):
            _ip("netns", "add", name)
        _ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "br0", "up")
        for number, name in enumerate(self.names):
            _ip("link", "add", "eth0", "netns", name, "type", "veth",
                "peer", "name", f"port{number}", "netns", self.switch)  # fmt: skip
            _ip("-n", self.switch, "link", "set", f"port{number}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", ADDRESS.format(number + 1) + "/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *exception: object) -> None:
        for name in (*self.names, self.switch):
            subprocess.run(["ip", "netns", "del", name], check=False)

    def link(self, number: int, state: str) -> None:
        """Take a host's link ``up`` or ``down``."""
        _ip("-n", self.switch, "link", "set", f"port{number}", state)

    def impair(self, how: str) -> None:
        """Delay and lose packets on all links."""
        for number in range(len(self.names)):
            _tool("tc", "-n", self.switch, "qdisc", "add", "dev", f"port{number}", "root",
                  "netem", *how.split())  # fmt: skip


def _ip(*arguments: str) -> None:
    _tool("ip", *arguments)


def _tool(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def unavailable() -> str:
    """Why no hosts can be pretended here; empty if they can."""
    for tool in ("ip", "unshare", "tc"):
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
    hosts: Hosts, place: Path, case: Case, *, shared: bool, rendezvous: str, timeout_s: float
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The job on all hosts: one launcher each, its output in ``place/nodeN.log``."""
    script = place / "job.py"
    script.write_text(_JOB)
    (place / "tmp").mkdir()
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
            # A host outlives its launcher.
            f'hostname node{number}; mount --bind {names} /etc/hosts; "$@" & wait; sleep 20', "sh",
            *(torchrun if case.absent is None else ["sh", "-c", _SRUN, "sh", str(script)]),
        ]  # fmt: skip
        if number == case.absent:
            command = ["sleep", "600"]
        environment = {
            **os.environ, "HANGSCOPE": "1", "HANGSCOPE_TIMEOUT": str(timeout_s),
            "HANGSCOPE_DIR": str(place / ("run" if shared else f"run{number}")),
            "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "HANGSCOPE_NOTICE": "0",
            "FAULT": case.fault, "GO": str(place / "go"),
            "STEPS": "20" if not case.fails else "100000", "TMPDIR": str(place / "tmp"),
            # The c10d rendezvous itself does not work with clocks further apart.
            **({"LD_PRELOAD": FAKETIME,
                "FAKETIME": f"+{case.skew_s if rendezvous == 'static' else 10:.0f}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1"} if case.skew_s and number == 1 else {}),
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
    name: str, *, shared: bool, rendezvous: str, timeout_s: float = 8.0, patience_s: float = 90.0,
    hosts: int = 3,
) -> dict[str, Any]:  # fmt: skip
    """One case; returns what each host's log says, and after how many seconds."""
    case, place = CASES[name], Path(tempfile.mkdtemp(prefix="hangscope-hosts-"))
    with Hosts(hosts) as network, job(
        network, place, case, shared=shared, rendezvous=rendezvous, timeout_s=timeout_s
    ) as started:  # fmt: skip
        if case.slow:
            network.impair(case.slow)
        if case.absent is None:
            _wait(lambda: "step 14" in _log(place, 0) or started[0].poll() is not None, 300)
        if case.fails and case.absent is None:  # until the monitors have met
            _wait(lambda: len(_meetings(place, hosts)) >= hosts - 1, 100)
        (place / "go").touch()
        failed_s = time.monotonic()
        if case.kill is not None:
            started[case.kill].kill()
        if case.cut is not None:
            network.link(case.cut, "down")
        survivors = [n for n in range(hosts) if n not in (case.kill, case.absent)]
        first: dict[int, float] = {}
        restored = not case.back_after_s

        def is_over() -> bool:
            nonlocal restored
            passed_s = time.monotonic() - failed_s
            if not restored and passed_s > case.back_after_s and case.cut is not None:
                network.link(case.cut, "up")
                restored = True
            for number in survivors:
                if number not in first and _said(place, number):
                    first[number] = round(passed_s, 1)
            if not case.fails:
                return all(process.poll() is not None for process in started)
            return restored and all(_is_right(case, place, number) for number in survivors)

        _wait(is_over, patience_s + case.back_after_s)
        right = {n: _is_right(case, place, n) for n in survivors}
    merged = _merged(place)
    return {
        "case": name,
        "shared": shared,
        "rendezvous": rendezvous,
        "right": right,
        "innocents": {n: _innocents(case, _said(place, n)) for n in survivors},
        "merged": merged,
        "merged_right": not case.fails or set(merged["culprits"]) <= case.guilty,
        "first_word_s": first,
        "said": {n: _said(place, n)[:6] for n in survivors},
        "place": str(place),
    }


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
        return {"headline": done.stderr[-300:], "culprits": []}
    return {name: said.get(name) for name in ("verdict", "headline", "culprits", "hosts")}


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
        return not said and "step 19" in _log(place, 0)
    wanted = case.others if number == case.cut and case.others else case.says
    if case.name == "node0-cut" and number != case.cut:
        wanted = case.says
    return any(re.search(wanted, line) for line in said)


def _log(place: Path, number: int) -> str:
    return (place / f"node{number}.log").read_text(errors="replace")


def _said(place: Path, number: int) -> list[str]:
    return [line for line in _log(place, number).splitlines() if "[hangscope]" in line]


def _wait(condition: object, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s and not condition():  # type: ignore[operator]
        time.sleep(0.2)


def main() -> int:
    """Run cases one after the other; the exit status says whether all were right."""
    parser = argparse.ArgumentParser(prog="python -m tools.hosts", description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--shared", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--rendezvous", choices=("static", "c10d", "both"), default="both")
    parser.add_argument("--patience", type=float, default=90.0)
    arguments = parser.parse_args()
    why = unavailable()
    if not FAKETIME and any(CASES[name].skew_s for name in arguments.cases):
        why = why or "libfaketime is missing, which the case skew needs (apt-get install faketime)"
    if why:
        print(why)
        return 2
    all_right = True
    for name in arguments.cases:
        for shared in (False, True):
            for rendezvous in ("static", "c10d"):
                if arguments.shared not in ("both", "yes" if shared else "no"):
                    continue
                if arguments.rendezvous not in ("both", rendezvous):
                    continue
                found = run(name, shared=shared, rendezvous=rendezvous,
                            patience_s=arguments.patience)  # fmt: skip
                all_right &= all(found["right"].values()) and bool(found["merged_right"])
                all_right &= not any(found["innocents"].values())
                print(json.dumps(found, indent=1, ensure_ascii=False), flush=True)
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
