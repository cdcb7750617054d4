"""What the plugin writes, in every version of NCCL's profiler interface.

Each test runs in processes of its own: the plugin makes one file per process and stays loaded.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hangscope.nccl_plugin.build import build_plugin
from hangscope.ring.device_layout import LinkState, OperationFlag
from hangscope.ring.device_reader import DeviceRing, read_device_ring
from tests.nccl_plugin.driver import Nccl

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.xdist_group("nccl_plugin")


@functools.cache
def library() -> Path:
    return build_plugin(Path(tempfile.mkdtemp(prefix="hangscope-plugin-")))


def play(
    script: str, ring: Path, interface: int = 5, *, wait: bool = True
) -> subprocess.Popen[str]:
    """Run a script with ``nccl``, a loaded plugin, in a process of its own."""
    head = (
        "import os, sys, time\nfrom pathlib import Path\nfrom tests.nccl_plugin.driver import *\n"
        f"nccl = Nccl(Path({str(library())!r}), Path({str(ring)!r}), {interface})\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", head + script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    if wait:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    return process


def played(tmp_path: Path, script: str, interface: int = 5) -> DeviceRing:
    ring = tmp_path / "rank_0.device"
    play(script, ring, interface)
    return read_device_ring(ring)


ONE_OF_EACH = """
comm = nccl.init(0xfeed, 4, 2, b"pipeline")
begun = nccl.coll(comm, b"AllReduce", 3, count=1024, channels=2, name=b"pipeline", hash=0xfeed)
a = nccl.begin(comm, begun, 0, 100)
b = nccl.begin(comm, begun, 1, 101)
nccl.end(b, 200)
ended = nccl.coll(comm, b"Broadcast", 0, root=1, datatype=b"ncclBfloat16", algorithm=b"TREE")
nccl.end(nccl.begin(comm, ended, 0, 300), 400)
enqueued = nccl.start(comm, P2P, func=b"Send", count=7, peer=3, channels=1, datatype=b"ncclInt8")
nccl.stop(enqueued)
"""


@pytest.mark.parametrize("interface", [3, 4, 5, 6])
def test_each_version_of_the_interface_gives_the_same_operations(
    tmp_path: Path, interface: int
) -> None:
    ring = played(tmp_path, ONE_OF_EACH, interface)
    assert ring.interface == interface
    (communicator,) = ring.communicators
    assert communicator["hash"] == 0xFEED
    assert communicator["name"] == b"pipeline"
    assert (communicator["ranks"], communicator["rank"]) == ((0, 0) if interface == 3 else (4, 2))
    assert communicator["collectives"] == 2
    assert communicator["pairs"] == 1
    assert ring.operations["func"].tolist() == [b"AllReduce", b"Broadcast", b"Send"]
    assert ring.operations["seq"].tolist() == [3, 0, 0]
    assert ring.operations["count"].tolist() == [1024, 1, 7]
    assert ring.operations["root_or_peer"].tolist() == [0, 1, 3]
    assert ring.operations["datatype"].tolist() == [b"Float32", b"Bfloat16", b"Int8"]
    assert ring.operations["channels_begun"].tolist() == [2, 1, 0]
    assert ring.operations["channels_ended"].tolist() == [1, 1, 0]
    began, end = ring.operations["begun_ns"], ring.operations["ended_ns"]
    assert (began > 0).tolist() == [True, True, False]
    assert (end > 0).tolist() == [False, True, False]
    if interface > 3:  # version 3 tells no device times
        assert ring.operations["device_begun_ns"].tolist() == [100, 300, 0]
        assert ring.operations["device_ended_ns"].tolist() == [200, 400, 0]
    assert bool(ring.operations["flags"][2] & OperationFlag.P2P)


def test_what_a_graph_replays_is_marked(tmp_path: Path) -> None:
    script = """
comm = nccl.init(1, 2, 0)
nccl.coll(comm, b"AllReduce", 0)
nccl.coll(comm, b"AllReduce", 1, captured=True)
"""
    ring = played(tmp_path, script)
    assert ring.operations["flags"].tolist() == [0, OperationFlag.REPLAYED]
    (communicator,) = ring.communicators
    assert (communicator["collectives"], communicator["replays"]) == (1, 1)
    older = tmp_path / "older"
    older.mkdir()
    flags = played(older, script, 4).operations["flags"]
    assert flags.tolist() == [OperationFlag.GRAPH_UNKNOWN] * 2


def test_newest_state_of_each_proxy_is_kept(tmp_path: Path) -> None:
    script = """
comm = nccl.init(1, 2, 0)
op = nccl.coll(comm, b"AllReduce", 0)
send = nccl.start(comm, PROXY_OP, op, pid=os.getpid(), channel=1, peer=1, steps=8, is_send=1)
step = nccl.start(comm, PROXY_STEP, send, step=0)
nccl.state(step, 8)
nccl.state(step, 20)
nccl.stop(step)
step = nccl.start(comm, PROXY_STEP, send, step=1)
nccl.state(step, 9)
foreign = nccl.start(comm, PROXY_OP, op, pid=os.getpid() + 1, channel=1, peer=1, steps=8)
assert foreign == 0
"""
    (link,) = played(tmp_path, script).links
    assert (link["operation"], link["peer"], link["channel"], link["is_send"]) == (1, 1, 1, 1)
    assert (link["steps"], link["steps_begun"], link["steps_ended"]) == (8, 2, 1)
    assert link["state"] == LinkState.SEND


def test_a_proxy_that_does_nothing_else_shows_that_it_lives(tmp_path: Path) -> None:
    script = """
comm = nccl.init(1, 2, 0)
nccl.coll(comm, b"AllReduce", 0)
control = nccl.start(comm, PROXY_CTRL)
nccl.state(control, 17)
nccl.stop(control)
"""
    ring = played(tmp_path, script)
    (communicator,) = ring.communicators
    assert communicator["proxy_ns"] >= ring.operations["enqueued_ns"][0]


def test_it_is_bounded(tmp_path: Path) -> None:
    script = """
comm = nccl.init(1, 2, 0)
first = nccl.coll(comm, b"AllReduce", 0)
for n in range(1, 10000):
    op = nccl.coll(comm, b"AllReduce", n)
nccl.end(nccl.begin(comm, op))
nccl.begin(comm, first)
for n in range(2000):
    last = nccl.init(n, 2, 0)
assert last is None
nccl.coll(last, b"AllReduce", 0)
"""
    ring = played(tmp_path, script)
    assert ring.operations["id"].tolist() == list(range(10000 - 4096 + 1, 10001))
    assert ring.operations["channels_begun"].sum() == 1, "an overwritten operation was changed"
    assert len(ring.communicators) == 1024
    assert (tmp_path / "rank_0.device").stat().st_size < 2_000_000


def test_a_child_writes_nothing_into_its_parents_file(tmp_path: Path) -> None:
    script = """
comm = nccl.init(1, 2, 0)
op = nccl.coll(comm, b"AllReduce", 0)
child = os.fork()
if not child:
    nccl.begin(comm, op)
    nccl.coll(comm, b"Broadcast", 0)
    try:
        nccl.init(2, 2, 0)
    except OSError:
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
nccl.coll(comm, b"AllReduce", 1)
"""
    ring = played(tmp_path, script)
    assert ring.operations["func"].tolist() == [b"AllReduce"] * 2
    assert ring.operations["channels_begun"].tolist() == [0, 0]
    assert len(ring.communicators) == 1


def test_a_file_that_exists_is_left_alone_and_nccl_goes_on(tmp_path: Path) -> None:
    ring = tmp_path / "rank_0.device"
    for present in (lambda: ring.write_text("mine"), lambda: ring.symlink_to(tmp_path / "else")):
        ring.unlink(missing_ok=True)
        present()
        play("try:\n  nccl.init(1, 2, 0)\nexcept OSError:\n  pass\nelse:\n  sys.exit(1)", ring)
    assert not (tmp_path / "else").exists()


def test_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    script = """
import threading
comms = [nccl.init(n, 2, 0) for n in range(4)]
def work(comm):
    for n in range(500):
        op = nccl.coll(comm, b"AllReduce", n, count=comm, channels=2)
        for channel in (0, 1):
            nccl.end(nccl.begin(comm, op, channel))
threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    ring = played(tmp_path, script)
    assert len(ring.operations) == 2000
    assert (ring.operations["count"] == ring.operations["communicator"]).all()
    assert (ring.operations["ended_ns"] > 0).all()
    assert ring.communicators["collectives"].tolist() == [500] * 4


@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_a_readable_ring(tmp_path: Path) -> None:
    """200 times; at most the operations that were being written are missing."""
    script = """
import mmap
comm = nccl.init(7, 2, 0)
counts = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 16)
cells = memoryview(counts).cast("q")
os.write(1, b"ready\\n")
n = 0
while True:
    n += 1
    cells[0] = n
    op = nccl.coll(comm, b"AllReduce", n, count=n)
    channel = nccl.begin(comm, op)
    cells[1] = n
    nccl.end(channel)
"""
    truth = tmp_path / "counts"
    chance = random.Random(42)
    for round_ in range(200):
        ring = tmp_path / f"rank_{round_}.device"
        truth.write_bytes(bytes(16))
        process = _forked(script, ring, truth)
        time.sleep(chance.uniform(0.002, 0.02))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        issued, begun = memoryview(truth.read_bytes()).cast("q")
        found = read_device_ring(ring)
        assert found.communicators["hash"].tolist() == [7]
        ids = found.operations["id"]
        last = int(ids[-1]) if len(ids) else 0
        assert begun <= last <= issued
        assert len(ids) == min(last, 4096), f"torn in round {round_}"
        assert (found.operations["count"] == ids).all()
        assert (found.operations["begun_ns"][:-1] > 0).all()
        ring.unlink()


def _forked(script: str, ring: Path, truth: Path) -> int:
    """A child that plays a script for ever; returns its pid once it has begun."""
    plugin = library()
    came, ready = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.dup2(ready, 1)
            sys.argv = ["", str(truth)]
            exec(script, {"nccl": Nccl(plugin, ring), "os": os, "sys": sys})
        finally:
            os._exit(1)
    os.close(ready)
    with open(came) as pipe:
        assert pipe.readline() == "ready\n"
    return pid


def test_cost_of_an_operation(tmp_path: Path) -> None:
    """At most 1 µs on the host; measured from C, as NCCL calls it."""
    program = tmp_path / "cost"
    source = Path(__file__).parent / "cost.c"
    subprocess.run(["cc", "-O2", str(source), "-o", str(program), "-ldl"], check=True)
    done = subprocess.run(
        [program, library(), tmp_path / "cost.device"], capture_output=True, text=True, check=True
    )
    cost = json.loads(done.stdout)
    assert cost["operations"] == len(read_device_ring(tmp_path / "cost.device").operations)
    assert cost["host_ns"] < 1000
