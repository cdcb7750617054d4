"""Every way of issuing a collective by hand, checked against the ring and torch's own recorder."""

from __future__ import annotations

import os
import threading

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from eager import EAGER, ones
from harness import frames_of, peer, recorded, session

from hangscope.ring.layout import SlotFlag
from hangscope.trace.model import Flag
from tests.job_report import Report

report = Report()
dist.init_process_group("gloo")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
report.values["hook"] = type(session().hook).__name__


def init_again(backend: str, generation: int) -> None:
    """With a store of its own: the launcher's still has the addresses of the last time."""
    method = f"file://{os.environ['RESULTS']}/generation{generation}"
    dist.init_process_group(backend, init_method=method, rank=RANK, world_size=SIZE)


def manner_of(row) -> str:
    """How a send or recv was asked for, and whether somebody waits or waited for it."""
    flags = int(row["flags"]) & int(SlotFlag.ASYNC | SlotFlag.BLOCKING | SlotFlag.WAITED)
    return " ".join(f.name for f in SlotFlag if f & flags)


for name, (op, call) in EAGER.items():
    for is_async in (False, True):
        with report.check(f"{'async' if is_async else 'sync'}:{name}"):
            with recorded() as seen:
                work = call(is_async)
                if work is not None:
                    work.wait()
            assert seen.ops == [op], seen.ops
            assert "<module>" in frames_of(seen.stacks[0]), seen.stacks
            assert int(seen.rows[0]["state"]) == 2, "not completed"
            assert not seen.rows[0]["flags"] & int(Flag.UNOBSERVED)

with report.check("a bundle that is never waited for is marked not observed"):
    with recorded() as seen:
        work = dist.reduce_scatter_tensor(ones(), ones(8 * SIZE), async_op=True)
    assert int(seen.rows[0]["state"]) == 0
    assert seen.rows[0]["flags"] & int(Flag.UNOBSERVED)
    work.wait()

with report.check("all_to_all_single, uneven"):
    with recorded() as seen:
        splits = [1, 2] if RANK == 0 else [2, 5]
        other = [1, 2] if RANK == 0 else [2, 5]
        dist.all_to_all_single(ones(sum(other)), ones(sum(splits)), other, splits)
    assert seen.ops == ["all_to_all"]
    assert seen.signatures[0].input_splits == tuple(splits), seen.signatures

with report.check("reduce ops"):
    with recorded() as seen:
        for reduce_op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
            dist.all_reduce(ones(), op=reduce_op)
        dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist.ReduceOp.BAND)
    assert [s.reduce_op for s in seen.signatures] == ["SUM", "MAX", "MIN", "BAND"], seen.signatures

with report.check("shapes, dtypes, roots"):
    with recorded() as seen:
        dist.broadcast(torch.zeros(2, 3, dtype=torch.bfloat16), 1)
    (signature,) = seen.signatures
    assert signature.input_sizes == ((2, 3),), signature
    assert signature.input_dtypes == ("BFloat16",), signature
    assert int(seen.rows[0]["root"]) == 1

with report.check("monitored_barrier"):
    with recorded() as seen:
        dist.monitored_barrier()
        dist.all_reduce(ones())
    assert seen.ops == ["monitored_barrier", "all_reduce"], seen.ops
    assert int(seen.rows[0]["state"]) == 2

with report.check("object collectives"):
    with recorded() as seen:
        objects = [None] * SIZE
        dist.all_gather_object(objects, {"rank": RANK, "text": "x" * RANK * 100})
        box = [RANK]
        dist.broadcast_object_list(box, 0)
        dist.gather_object(RANK, [None] * SIZE if RANK == 0 else None, 0)
        out = [None]
        dist.scatter_object_list(out, list(range(SIZE)) if RANK == 0 else None, 0)
    assert box == [0]
    assert out == [RANK]
    gathered = [op.replace("_all_gather_base", "all_gather") for op in seen.ops]  # torch 2.15's
    assert gathered[:2] == ["all_gather", "all_gather"], seen.ops
    assert seen.ops.count("broadcast") >= 2
    assert "gather" in seen.ops
    assert "scatter" in seen.ops

with report.check("send and recv"):
    with recorded() as seen:
        if RANK == 0:
            dist.send(ones(), 1)
            dist.recv(ones(), 1)
        else:
            dist.recv(ones(), 0)
            dist.send(ones(), 0)
    assert sorted(seen.ops) == ["recv", "send"], seen.ops
    assert [int(row["peer"]) for row in seen.rows] == [peer(), peer()]
    assert [int(row["p2p_seq"]) for row in seen.rows][1] == int(seen.rows[0]["p2p_seq"]) + 1
    assert [manner_of(row) for row in seen.rows] == ["BLOCKING"] * 2

with report.check("isend, irecv"):
    with recorded() as seen:
        works = [dist.isend(ones(), peer()), dist.irecv(ones(), peer())]
        for work in works:
            work.wait()
    assert seen.ops == ["send", "recv"], seen.ops
    assert [manner_of(row) for row in seen.rows] == ["ASYNC WAITED"] * 2

with report.check("isend, irecv not yet waited for"):
    with recorded() as seen:
        works = [dist.isend(ones(), peer()), dist.irecv(ones(), peer())]
        works[0].wait()
        dist.barrier()
    assert [manner_of(row) for row in seen.rows[:2]] == ["ASYNC WAITED", "ASYNC"]
    works[1].wait()

with report.check("recv from any source"):
    with recorded() as seen:
        if RANK == 0:
            assert dist.recv(ones()) == 1
        else:
            dist.send(ones(), 0)
    assert seen.ops == (["recv"] if RANK == 0 else ["send"]), seen.ops
    assert int(seen.rows[0]["peer"]) == (-1 if RANK == 0 else 0)
    if RANK == 0:
        assert seen.signatures[0].raw.endswith("recv 0<-?"), seen.signatures

with report.check("batch_isend_irecv"):
    with recorded() as seen:
        operations = [
            dist.P2POp(dist.isend, ones(), peer()),
            dist.P2POp(dist.irecv, ones(), peer()),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    assert seen.only("send", "recv") == ["send", "recv"], seen.ops
    assert [manner_of(row) for row in seen.rows] == ["ASYNC WAITED"] * 2

with report.check("coalescing manager"):
    from torch.distributed.distributed_c10d import _coalescing_manager

    with recorded() as seen:
        for issue in (
            lambda n: dist.all_reduce(ones(n)),
            lambda n: dist.all_gather_into_tensor(ones(n * SIZE), ones(n)),
            lambda n: dist.reduce_scatter_tensor(ones(n), ones(n * SIZE)),
        ):
            with _coalescing_manager(async_ops=True) as manager:
                issue(4)
                issue(5)
            manager.wait()
        dist.all_reduce(ones())
    assert seen.ops == [
        "allreduce_coalesced",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter_tensor_coalesced",
        "all_reduce",
    ], seen.ops
    assert [s.input_sizes for s in seen.signatures[:2]] == [((4,), (5,))] * 2, seen.signatures

with report.check("functional collectives"):
    with recorded() as seen:
        value = functional.all_reduce(ones(), "sum", dist.group.WORLD)
        functional.wait_tensor(value)
        functional.wait_tensor(functional.all_gather_tensor(ones(), 0, dist.group.WORLD))
        functional.wait_tensor(
            functional.reduce_scatter_tensor(ones(8 * SIZE), "sum", 0, dist.group.WORLD)
        )
        functional.wait_tensor(functional.broadcast(ones(), 0, dist.group.WORLD))
        functional.wait_tensor(functional.all_to_all_single(ones(8), None, None, dist.group.WORLD))
    assert len(seen.ops) == 5, seen.ops
    assert "all_reduce" in seen.ops[0], seen.ops
    assert seen.native, "torch's own recorder has been asked"

with report.check("functional collectives, several tensors at once"):
    WORLD = dist.group.WORLD
    with recorded() as seen:
        for values in (
            functional.all_reduce_coalesced([ones(), ones(3)], "sum", WORLD),
            functional.all_gather_into_tensor_coalesced([ones(), ones(3)], WORLD),
            functional.reduce_scatter_tensor_coalesced(
                [ones(8 * SIZE), ones(4 * SIZE)], "sum", [0, 0], WORLD
            ),
            [functional.permute_tensor(ones(), [1, 0], WORLD)],
        ):
            for value in values:
                functional.wait_tensor(value)
    assert seen.ops == [
        "allreduce_coalesced",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter_tensor_coalesced",
        "all_to_all",
    ], seen.ops

with report.check("inference mode"):
    with recorded() as seen, torch.inference_mode():
        dist.all_reduce(ones())
    assert seen.ops == ["all_reduce"]

with report.check("invisible to a TorchFunctionMode of the job"):
    from torch.overrides import TorchFunctionMode

    class Counting(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.names.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    tensor = ones()
    with recorded() as seen, Counting() as mode:
        dist.all_reduce(tensor)
    names_on = list(mode.names)
    hook = session().hook
    hook.listening = False
    with Counting() as mode:
        dist.all_reduce(tensor)
    hook.listening = True
    state = session().recorder.groups.by_identity[id(dist.group.WORLD)]
    state.collective_seq += 1  # the one that was not recorded
    assert seen.ops == ["all_reduce"]
    assert names_on == mode.names, (names_on, mode.names)

with report.check("other threads"):
    groups = [dist.new_group([0, 1]) for _ in range(3)]
    with recorded() as seen:

        def work_in(group: object) -> None:
            for _ in range(20):
                dist.all_reduce(ones(), group=group)

        threads = [threading.Thread(target=work_in, args=(group,)) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen.ops == ["all_reduce"] * 60, len(seen.ops)
    assert len(set(seen.rows["thread"].tolist())) == 3
    for group in {id(g) for g in seen.groups}:
        rows = [r for r, g in zip(seen.rows, seen.groups, strict=True) if id(g) == group]
        assert [int(r["collective_seq"]) for r in rows] == list(range(1, 21))

with report.check("autograd hooks"):
    weight = torch.nn.Parameter(ones())

    def reduce_gradient(gradient: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(gradient)
        return gradient

    weight.register_hook(reduce_gradient)
    with recorded() as seen:
        (weight * 2).sum().backward()
    assert seen.ops == ["all_reduce"]
    assert "reduce_gradient" in frames_of(seen.stacks[0])

with report.check("subgroups"):
    mine = [dist.new_group([rank]) for rank in range(SIZE)][RANK]
    both = dist.new_group([1, 0], group_desc="both")
    with recorded() as seen:
        dist.all_reduce(ones(), group=mine)
        dist.all_reduce(ones(), group=both)
        dist.broadcast(ones(), 1, group=both)
    assert [g.ranks for g in seen.groups] == [(RANK,), (0, 1), (0, 1)], seen.groups
    assert seen.groups[1].desc == "both"
    assert [int(r["collective_seq"]) for r in seen.rows] == [1, 1, 2]

with report.check("split_group, which Gloo refuses before torch 2.15"):
    refused = ""
    with recorded() as seen:
        try:
            part = dist.split_group(dist.group.WORLD, [[0, 1]], group_desc="part")
        except Exception as error:  # the job sees torch's own
            refused = f"{type(error).__name__}: {error}"
        else:
            dist.all_reduce(ones(), group=part)
    if refused:
        assert "No device" in refused or "No backend" in refused, refused
        assert seen.ops == []
    else:
        assert seen.ops == ["all_reduce"], seen.ops
        assert [(g.ranks, g.desc) for g in seen.groups] == [((0, 1), "part")], seen.groups

with report.check("DeviceMesh"):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (SIZE, 1), mesh_dim_names=("dp", "tp"))
    with recorded() as seen:
        dist.all_reduce(ones(), group=mesh.get_group("dp"))
        dist.all_reduce(ones(), group=mesh.get_group("tp"))
    assert [g.ranks for g in seen.groups] == [(0, 1), (RANK,)], seen.groups

with report.check("refused arguments do not use up a sequence number"):
    with recorded() as seen:
        for bad in (torch.ones(2, dtype=torch.complex32), torch.ones(4).to_sparse()):
            try:
                dist.all_reduce(bad, op=dist.ReduceOp.MAX)
            except Exception as error:
                report.values[f"refused {bad.dtype}"] = str(error)[:80]
        try:
            dist.broadcast(ones(), 17)
        except Exception as error:
            report.values["refused root"] = str(error)[:80]
        dist.all_reduce(ones())
    assert seen.ops[-1] == "all_reduce"

with report.check("a group destroyed and freed in Python"):
    kept = dist.new_group([0, 1])
    with recorded() as seen:
        dist.all_reduce(ones(), group=kept)
        dist.destroy_process_group(kept)
        del kept
    assert seen.ops == ["all_reduce"]

with report.check("hangscope.record"):
    import hangscope

    with recorded() as seen:
        with hangscope.record("pynccl:all_reduce", ones(), group="comm", ranks=[0, 1]):
            pass
        with hangscope.record("pynccl:all_gather", [ones(), ones(2)], group=dist.group.WORLD):
            pass
        try:
            with hangscope.record("pynccl:broadcast", ones(), group="comm", ranks=[0, 1]):
                raise KeyError("mine")
        except KeyError:
            pass
    assert seen.ops == ["all_reduce", "all_gather", "broadcast"], seen.ops
    assert [g.ranks for g in seen.groups] == [(0, 1)] * 3
    assert [int(r["state"]) for r in seen.rows] == [2, 2, 2]
    assert seen.signatures[1].input_sizes == ((8,), (2,))
    assert frames_of(seen.stacks[0])[0] == "<module>", seen.stacks[0]

with report.check("hangscope.phase"):
    from hangscope.trace.rings.read import read_ring

    with hangscope.phase("checkpoint", "step 7"):
        facts = read_ring(session().ring.path).facts
    assert [(p.name, p.detail) for p in facts.phases] == [("checkpoint", "step 7")]
    assert read_ring(session().ring.path).facts.phases == ()

with report.check("destroy and init again"):
    dist.destroy_process_group()
    facts = read_ring(session().ring.path).facts
    assert facts.finalized
    assert not facts.initialized
    init_again("gloo", 1)
    with recorded() as seen:
        dist.all_reduce(ones())
    assert [int(r["collective_seq"]) for r in seen.rows] == [1], seen.rows
    assert seen.groups[0].epoch >= 1
    facts = read_ring(session().ring.path).facts
    assert facts.initialized
    assert not facts.finalized

with report.check("several backends in one job"):
    dist.destroy_process_group()
    init_again("cpu:gloo", 2)
    with recorded() as seen:
        dist.all_reduce(ones())
        dist.barrier()
    assert seen.ops == ["all_reduce", "barrier"], seen.ops
    assert seen.signatures[0].backend == "gloo"
    dist.destroy_process_group()
    init_again("cpu:gloo,cuda:fake", 3)
    with recorded(same_numbers=False) as seen:
        dist.all_reduce(ones())
    assert seen.ops == ["all_reduce"], seen.signatures
    assert seen.signatures[0].backend == "gloo", seen.signatures

dist.destroy_process_group()
