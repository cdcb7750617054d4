"""The same checks on any device and backend: ``device_job.py cuda nccl`` or ``cpu gloo``.

Written for one rank a GPU, from one GPU on. What only a GPU can show (streams, captures, the native
recorder's own states) is reported as a value where there is none, so that nobody takes it for seen.
"""

from __future__ import annotations

import os
import pickle
import sys
import time

import torch
import torch.distributed as dist
from harness import recorded, session

from hangscope.trace.rings.read import read_ring
from tests.job_report import Report
from tools.gpus import take_gpu

DEVICE, BACKEND = sys.argv[1:3]
ON_GPU = DEVICE == "cuda"
SLEEP_CYCLES = 3_000_000_000
"""A second or two of any GPU of these years."""
SEEN_WITHIN_S = 10.0

report = Report()
if ON_GPU:
    take_gpu()
dist.init_process_group(BACKEND)
RANK, SIZE = dist.get_rank(), dist.get_world_size()


def ones(count: int = 8) -> torch.Tensor:
    return torch.ones(count, device=DEVICE)


def wait_for_device() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def native_numbers() -> list[int]:
    """Sequence numbers of the collectives in torch's own recorder, oldest first."""
    from torch._C import _distributed_c10d as c10d

    # In the job's own thread, with nothing being captured: here events may be asked for.
    dump = c10d._dump_nccl_trace if ON_GPU else c10d._dump_fr_trace
    entries = pickle.loads(dump(includeStackTraces=False)).get("entries", [])
    return [entry["collective_seq_id"] for entry in entries if not entry["is_p2p"]]


def counters_of_world() -> tuple[int, int]:
    """(last enqueued, last completed) of the default group, as a reader of the ring gets them."""
    fragment = read_ring(session().ring.path)
    position = next(
        at for at, group in enumerate(fragment.groups) if group.ranks == tuple(range(SIZE))
    )
    (row,) = (row for row in fragment.members if row["group"] == position)
    return int(row["enqueued"]), int(row["completed"])


CALLS = {
    "all_reduce": lambda: dist.all_reduce(ones(), async_op=True),
    "broadcast": lambda: dist.broadcast(ones(), 0, async_op=True),
    "reduce": lambda: dist.reduce(ones(), 0, async_op=True),
    "_all_gather_base": lambda: dist.all_gather_into_tensor(ones(8 * SIZE), ones(), async_op=True),
    "_reduce_scatter_base": lambda: dist.reduce_scatter_tensor(
        ones(), ones(8 * SIZE), async_op=True
    ),
    "all_to_all": lambda: dist.all_to_all_single(ones(8 * SIZE), ones(8 * SIZE), async_op=True),
    "barrier": lambda: dist.barrier(async_op=True),
}

with report.check("numbers are those of the native recorder"):
    before = len(native_numbers())
    with recorded() as seen:
        for call in CALLS.values():
            call().wait()
        wait_for_device()
    assert seen.ops == list(CALLS), seen.ops
    assert native_numbers()[before:] == seen.sequence, (native_numbers()[before:], seen.sequence)

with report.check("a batch of sends and receives has one number"):
    if ON_GPU and SIZE > 1:  # Gloo makes no batches
        to, of = (RANK + 1) % SIZE, (RANK - 1) % SIZE
        numbers, pair = [], dist.new_group()
        for _ in range(2):
            halves = [
                dist.P2POp(dist.isend, ones(), to, pair),
                dist.P2POp(dist.irecv, ones(), of, pair),
            ]
            for work in dist.batch_isend_irecv(halves):
                work.wait()
            wait_for_device()
            records = read_ring(session().ring.path).records[-3:]
            numbers.append(set(records["p2p_seq"].tolist()))
        assert numbers == [{1}, {2}], numbers
    else:
        report.values["a batch of sends and receives has one number"] = "no batch"

with report.check("what has finished becomes known without asking the device"):
    dist.all_reduce(ones())
    wait_for_device()
    deadline = time.monotonic() + SEEN_WITHIN_S
    while len(set(counters_of_world())) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    enqueued, completed = counters_of_world()
    assert enqueued == completed > 0, (enqueued, completed)

with report.check("DDP"):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(DEVICE))
    model(torch.ones(2, 8, device=DEVICE)).sum().backward()
    with recorded() as seen:
        model(torch.ones(2, 8, device=DEVICE)).sum().backward()
        wait_for_device()
    assert "all_reduce" in seen.ops, seen.ops

with report.check("FSDP2"):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to(DEVICE)
    fully_shard(sharded, mesh=init_device_mesh(DEVICE, (SIZE,)))
    with recorded() as seen:
        sharded(torch.ones(2, 8, device=DEVICE)).sum().backward()
        wait_for_device()
    # A group of one needs no collective, and newer torch issues none.
    assert SIZE == 1 or "_all_gather_base" in seen.ops, seen.ops

with report.check("a busy device holds nobody up"):
    if ON_GPU:
        tensor = ones()
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP_CYCLES)
        began_s = time.monotonic()
        dist.all_reduce(tensor, async_op=True)
        issued_s = time.monotonic() - began_s
        torch.cuda.synchronize()
        total_s = time.monotonic() - began_s
        assert issued_s < total_s / 2, (issued_s, total_s)
    else:
        report.values["a busy device holds nobody up"] = "no GPU"

with report.check("a captured collective marks the run"):
    if ON_GPU:
        tensor = ones()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        assert read_ring(session().ring.path).facts.unobservable == ()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            dist.all_reduce(tensor)
        graph.replay()
        torch.cuda.synchronize()
        del graph  # NCCL destroys no communicator that a graph still refers to
        assert read_ring(session().ring.path).facts.unobservable == ("CUDA graph replay",)
    else:
        report.values["a captured collective marks the run"] = "no GPU"

with report.check("two backends in one group"):
    dist.destroy_process_group()
    both = f"cpu:gloo,{DEVICE}:{BACKEND}" if ON_GPU else "cpu:gloo"
    method = f"file://{os.environ['RESULTS']}/both"
    dist.init_process_group(both, init_method=method, rank=RANK, world_size=SIZE)
    with recorded(same_numbers=False) as seen:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(ones(5))
        wait_for_device()
    assert [signature.input_sizes for signature in seen.signatures] == [((3,),), ((5,),)]
    assert seen.sequence == [1, 2]

dist.destroy_process_group()
