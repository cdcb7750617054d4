"""``python -m tools.nodes``: a large job without the job: how long until a verdict, at what cost.

One node is real: eight ring files, the monitor as it is started in a job, and its relay process.
The others are simulated in a few processes: each has its own connection to a real TCPStore, the
code of the relay (`hangscope.toolkit.launching.tree`), and a report such as its monitor would send.
All stop at one moment, because one rank in the middle of the world does not join its group's
operation.

Run it in a network namespace of its own (``unshare -n``) to have the traffic of the store counted:
then all that crosses the loopback device is the store's.
"""

from __future__ import annotations

import argparse
import heapq
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hangscope.monitor.other_nodes import REPEAT_S
from hangscope.ring.process_identity import OWNER, boot_id, pid_namespace, start_ticks
from hangscope.toolkit.launching.messages import Report
from hangscope.toolkit.launching.relay import FEW_NODES, PERIOD_S, PREFIX, QUIET_PERIOD_S
from hangscope.toolkit.launching.tree import OtherNode
from hangscope.trace.digests.codec import decode, encode
from hangscope.trace.digests.digest import Digest, Node
from hangscope.trace.digests.make import MOST, NEWEST, digest_of
from hangscope.trace.digests.tables import Tables
from hangscope.trace.live.follow import LiveRun
from tests.live_rings import RingRank

RANKS = 8
PLACE = 3
"""Local rank of the rank that does not join."""
STEPS = 400
"""More than a real node takes until it stops, so that all stop at the same one."""


class Counted:
    """A store whose calls and bytes are counted."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls = self.sent = self.received = 0

    def set(self, key: str, value: bytes) -> None:
        self.calls, self.sent = self.calls + 1, self.sent + len(key) + len(value)
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        found: list[bytes] = self._store.multi_get(keys)
        self.calls, self.sent = self.calls + 1, self.sent + sum(map(len, keys))
        self.received += sum(map(len, found))
        return found

    def add(self, key: str, amount: int) -> int:
        self.calls, self.sent, self.received = (
            self.calls + 1,
            self.sent + len(key) + 8,
            self.received + 8,
        )
        return int(self._store.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        self.calls, self.sent = self.calls + 1, self.sent + sum(map(len, keys))
        return bool(self._store.check(keys))


def store_at(port: int, *, master: bool = False) -> Any:
    """A TCPStore on this machine."""
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(
        "127.0.0.1", port, is_master=master, wait_for_workers=False,
        timeout=timedelta(seconds=120),
    )  # fmt: skip


def serve(pipe: Any) -> None:
    """A process that holds the store, as that of rank 0 or its launcher does."""
    store = store_at(0, master=True)
    pipe.send(store.port)
    pipe.recv()


class Rings:
    """The ring files of one real node, whose ranks take steps until they stop."""

    def __init__(self, folder: Path, world: int, timeout_s: float) -> None:
        # A monitor follows only processes that say they record.
        sleeper = ["sh", "-c", f"export {OWNER}=$$; exec sleep 36000"]
        self.sleepers = [subprocess.Popen(sleeper) for _ in range(RANKS)]
        self.ranks, self.groups = [], []
        for rank, process in enumerate(self.sleepers):
            ring = RingRank(
                folder, rank, world, pid=process.pid, timeout_s=timeout_s, slots=2048,
                start_ticks=start_ticks(process.pid), boot_id=boot_id(),
                pid_namespace=pid_namespace(), local_world_size=RANKS,
                values_bytes=max(1 << 20, world * 16),
            )  # fmt: skip
            self.ranks.append(ring)
            self.groups.append(
                [
                    ring.join("0", "default_pg", range(world)),
                    ring.join("1", "tp", range(RANKS)),
                    ring.join(str(100_000 + rank), "dp", range(rank, world, RANKS)),
                ]
            )
        self.steps = 0
        self.is_stopped = False
        self._beating = True
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def step(self, last: bool = False) -> None:
        """One step of all ranks, in each of their groups.

        At the end of the last one the ranks of group ``dp`` number `PLACE` wait for one of them,
        and all others for these.
        """
        self.steps += 1
        for place, (ring, groups) in enumerate(zip(self.ranks, self.groups, strict=True)):
            for number, group in enumerate(groups):
                record = ring.issue(group, line=10 + number)
                if not (last and number == 2 and place == PLACE):
                    ring.finish(record)
            if last and place != PLACE:
                ring.issue(groups[0], line=10)

    def stop(self) -> None:
        """Take the remaining of all steps, and do not finish the last one."""
        self.is_stopped = True
        while self.steps < STEPS:
            self.step(last=self.steps == STEPS - 1)

    def live(self) -> None:
        """Take a step twice a second until `is_stopped`, and go on beating."""
        self._thread.start()

    def _beat(self) -> None:
        while self._beating:
            if not self.is_stopped and self.steps < STEPS - 1:
                self.step()
            for ring in self.ranks:
                ring.sample(12)
            time.sleep(0.5)

    def close(self) -> None:
        """End the processes."""
        self._beating = False
        for process in self.sleepers:
            process.kill()
            process.wait()


def reports_of(
    template: Digest, nodes: Sequence[int], culprit: int, stop_ns: int
) -> dict[int, bytes]:
    """The digest of each of these nodes: that of node 0, moved; one rank has not joined.

    ``stop_ns``: when the job stops; all times are moved towards it.
    """
    found = {}
    newest_ns = max(int(part.records["created_ns"].max()) for part in template.parts)
    later_ns = stop_ns - newest_ns
    for node in nodes:
        tables, parts = template.tables, []
        shift = node * RANKS
        tensor = next(i for i, g in enumerate(tables.groups) if g.desc == "tp")
        own = tables.group(
            replace(tables.groups[tensor], name=f"{1 + node}",
                    ranks=tuple(range(shift, shift + RANKS)))
        )  # fmt: skip
        for part in template.parts:
            rank = part.facts.rank + shift
            records, members = part.records.copy(), part.members.copy()
            jitter = np.random.default_rng(rank).integers(0, 200_000, len(records))
            for rows in (records, members):
                rows["rank"] = rank
                rows["group"][rows["group"] == tensor] = own
            for name in ("created_ns", "completed_ns"):
                records[name] += np.where(records[name] > 0, jitter + later_ns, 0)
            for name in ("enqueued_ns", "completed_ns"):
                members[name] += np.where(members[name] > 0, later_ns, 0)
            if rank == culprit:
                records = records[:-1]
                last = members["enqueued"] != members["completed"]
                members["enqueued"][last] -= 1
            facts = replace(
                part.facts, rank=rank, pid=1000 + rank, host=f"node{node}",
                observed_ns=part.facts.observed_ns + later_ns + 5 * 10**9,
                heartbeat_ns=part.facts.heartbeat_ns + later_ns + 5 * 10**9,
                threads=tuple(
                    replace(t, sampled_ns=t.sampled_ns + later_ns) for t in part.facts.threads
                ),
            )  # fmt: skip
            parts.append(replace(part, facts=facts, records=records, members=members))
        home = Node(f"node{node}", "", node, (f"10.{node >> 8}.{node & 255}.1",),
                    tuple(range(shift, shift + RANKS)))  # fmt: skip
        found[node] = encode(Digest((home,), tuple(parts), tables, template.timeout_s))
    return found


def simulate(pipe: Any, port: int, numbers: list[int], template: bytes, culprit: int) -> None:
    """A process with some of the nodes; told when the job stops."""
    stores = {number: Counted(_prefixed(port)) for number in numbers}
    nodes = {number: OtherNode(stores[number]) for number in numbers}
    reports: dict[int, bytes] = {}
    for number, node in nodes.items():
        ranks = tuple(range(number * RANKS, (number + 1) * RANKS))
        home = Node(f"node{number}", "", number, (f"10.{number >> 8}.{number & 255}.1",), ranks)
        card = encode(Digest((home,), (), Tables(), 0.0))
        node.report = Report(time.time_ns(), card)
    queue = [(time.monotonic() + random.uniform(0, QUIET_PERIOD_S), number) for number in numbers]
    heapq.heapify(queue)
    stopped_s, told, late_s, sends = 0.0, 0, 0.0, dict.fromkeys(numbers, 0.0)
    pipe.send("ready")
    is_over = False
    counters = _sums(stores)
    while not is_over:
        at_s, number = queue[0]
        now_s = time.monotonic()
        if pipe.poll(0) or now_s < at_s:
            if pipe.poll(max(0.0, min(0.5, at_s - now_s))):
                word, value = pipe.recv()
                if word == "prepare":
                    reports = reports_of(decode(template, Tables()), numbers, culprit, value)
                    pipe.send("ready")
                elif word == "stop":
                    stopped_s, counters = value, _sums(stores)
                    for one in numbers:
                        sends[one] = stopped_s + random.uniform(0, 1.0)
                elif word == "count":
                    now = _sums(stores)
                    passed = [a - b for a, b in zip(now, counters, strict=True)]
                    pipe.send([*passed, late_s, told])
                    counters, late_s = now, 0.0
                else:
                    is_over = True
            continue
        late_s = max(late_s, now_s - at_s)
        node = nodes[number]
        has_verdict = node.inbox.told is not None and bool(node.inbox.told.verdict)
        if stopped_s and now_s >= sends[number] and not has_verdict:
            node.report = Report(time.time_ns(), reports[number])
            sends[number] = now_s + REPEAT_S
        node.round()
        if not has_verdict and node.inbox.told is not None and node.inbox.told.verdict:
            told += 1
        awake = bool(stopped_s) and not has_verdict
        heapq.heapreplace(queue, (now_s + (PERIOD_S if awake else QUIET_PERIOD_S), number))


def _prefixed(port: int) -> Any:
    from torch._C._distributed_c10d import PrefixStore

    return PrefixStore(PREFIX, store_at(port))


def _sums(stores: dict[int, Counted]) -> list[float]:
    """Calls, bytes sent and received, and CPU seconds, since the start."""
    kept = stores.values()
    counts = [(store.calls, store.sent, store.received) for store in kept]
    return [*map(sum, zip(*counts, strict=True)), time.process_time()]


def loopback_bytes() -> int:
    """Bytes that have crossed the loopback device of this network namespace."""
    with open("/proc/net/dev", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.strip().startswith("lo:"))


def family(pid: int) -> tuple[float, float]:
    """CPU seconds and resident megabytes of a process and of its children."""
    used, resident = 0.0, 0.0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        times, memory = process.cpu_times(), process.memory_info()
        used += times.user + times.system
        resident += memory.rss / 1e6
    return used, resident


def run(
    nodes: int, timeout_s: float, processes: int, patience_s: float, log: Any
) -> dict[str, Any]:
    """One job of this size; returns what was measured."""
    world, folder = nodes * RANKS, Path(tempfile.mkdtemp(prefix="hangscope-nodes-"))
    culprit = (nodes // 2) * RANKS + PLACE
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    rings = Rings(folder, world, timeout_s)
    template = _template(world, timeout_s, MOST if nodes <= FEW_NODES else NEWEST)
    processes = min(processes, nodes - 1)
    others = [list(range(1 + at, nodes, processes)) for at in range(processes)]
    pipes = []
    for numbers in others:
        mine, its = context.Pipe()
        context.Process(target=simulate, args=(its, port, numbers, template, culprit),
                        daemon=True).start()  # fmt: skip
        pipes.append(mine)
    for pipe in pipes:
        assert pipe.recv() == "ready"
    rings.live()
    monitor = subprocess.Popen(
        [sys.executable, "-m", "hangscope.monitor", "--directory", str(folder), "--run-id", "live",
         "--attempt", "0", "--local-world-size", str(RANKS), "--timeout", str(timeout_s)],
        stderr=log, env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                         "OMP_NUM_THREADS": "1", "HANGSCOPE_NOTICE": "0"},
    )  # fmt: skip
    result: dict[str, Any] = {"nodes": nodes, "ranks": world, "timeout_s": timeout_s}
    try:
        return _measured(result, pipes, rings, monitor, log, patience_s)
    finally:
        for pipe in pipes:
            pipe.send(("end", 0))
        rings.close()
        monitor.kill()
        monitor.wait()
        ours.send("end")


def _template(world: int, timeout_s: float, newest: int) -> bytes:
    """The digest of a node that hangs."""
    folder = Path(tempfile.mkdtemp(prefix="hangscope-nodes-"))
    rings = Rings(folder, world, timeout_s)
    rings.stop()
    for ring in rings.ranks:
        ring.sample(12)
    digest = digest_of(LiveRun(folder).look(), range(RANKS), Node("node0"), newest=newest)
    rings.close()
    return encode(digest)


def _measured(
    result: dict[str, Any],
    pipes: list[Any],
    rings: Rings,
    monitor: subprocess.Popen[bytes],
    log: Any,
    patience_s: float,
) -> dict[str, Any]:
    def count() -> list[list[float]]:
        for pipe in pipes:
            pipe.send(("count", 0))
        return [pipe.recv() for pipe in pipes]

    def note(name: str, began_s: float, bytes_before: int, cpu_before: float) -> None:
        passed_s, rows = time.monotonic() - began_s, count()
        cpu, resident = family(monitor.pid)
        others = result["nodes"] - 1
        result[name] = {
            "seconds": round(passed_s, 1),
            "store_mb_s": round((loopback_bytes() - bytes_before) / 1e6 / passed_s, 3),
            "calls_per_node_s": round(sum(row[0] for row in rows) / others / passed_s, 2),
            "sent_per_node_b_s": round(sum(row[1] for row in rows) / others / passed_s),
            "node0_cpu_s": round(cpu - cpu_before, 2),
            "node0_rss_mb": round(resident),
            "others_cpu_s": round(sum(row[3] for row in rows), 1),
            "late_s": round(max(row[4] for row in rows), 1),
        }

    wait_for(lambda: bool(psutil.Process(monitor.pid).children()), 120)
    # All that makes the others' reports is done before anything is measured.
    stop_ns = time.time_ns() + int((60 + 0.03 * result["nodes"]) * 1e9)
    for pipe in pipes:
        pipe.send(("prepare", stop_ns))
    for pipe in pipes:
        assert pipe.recv() == "ready"
    left_s = (stop_ns - time.time_ns()) / 1e9
    if left_s < 11:
        raise SystemExit(f"the reports took {11 - left_s:.0f} s too long: this machine is too busy")
    time.sleep(left_s - 11)
    began, before, cpu = time.monotonic(), loopback_bytes(), family(monitor.pid)[0]
    count()
    time.sleep(10)
    note("well", began, before, cpu)
    time.sleep(max(0.0, (stop_ns - time.time_ns()) / 1e9))
    result["stop_late_s"] = round((time.time_ns() - stop_ns) / 1e9, 2)
    rings.stop()
    stopped_s, before, cpu = time.monotonic(), loopback_bytes(), family(monitor.pid)[0]
    for pipe in pipes:
        pipe.send(("stop", stopped_s + min(5.0, result["timeout_s"] / 2)))
    wait_for(
        lambda: b"[hangscope]" in Path(log.name).read_bytes(), result["timeout_s"] + patience_s
    )
    result["verdict_s"] = round(time.monotonic() - stopped_s, 2)
    note("hung", stopped_s, before, cpu)
    began, before, cpu = time.monotonic(), loopback_bytes(), family(monitor.pid)[0]
    time.sleep(10)
    note("after", began, before, cpu)
    result["told"] = sum(int(row[5]) for row in count())
    lines = Path(log.name).read_text(errors="replace").splitlines()
    result["line"] = next((line for line in lines if "[hangscope]" in line), "")
    return result


def wait_for(condition: Any, seconds: float) -> None:
    """Wait until something holds, or for so long."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s and not condition():
        time.sleep(0.1)


def main() -> int:
    """Measure each size, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tools.nodes", description=__doc__)
    parser.add_argument("nodes", type=int, nargs="*", default=[128, 512, 1250, 2048])
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--patience", type=float, default=120.0)
    arguments = parser.parse_args()
    for nodes in arguments.nodes:
        with tempfile.NamedTemporaryFile(prefix="hangscope-log-", delete=False) as log:
            found = run(nodes, arguments.timeout, arguments.processes, arguments.patience, log)
        print(json.dumps(found, indent=1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
