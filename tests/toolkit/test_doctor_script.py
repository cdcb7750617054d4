"""The doctor on training scripts and DeepSpeed configurations: D3 and D8 to D23."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from hangscope.toolkit.doctor.deepspeed import check_deepspeed, check_overlap, check_stage
from hangscope.toolkit.doctor.model import Surroundings
from hangscope.toolkit.doctor.script_hangs import check_hangs
from hangscope.toolkit.doctor.script_model import parse_script
from hangscope.toolkit.doctor.script_setup import check_setup

DDP = "model = DistributedDataParallel(net, world_size)"


def checks(source: str, nodes: int = 1) -> list[tuple[str, str]]:
    script = parse_script(textwrap.dedent(source), "train.py")
    return [(f.playbook, f.check) for f in (*check_hangs(script), *check_setup(script, nodes))]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("rank = int(os.environ['RANK'])\ntorch.cuda.set_device(rank)", ("D3", "device-by-rank")),
        ("torch.cuda.set_device(dist.get_rank())", ("D3", "device-by-rank")),
        ("x = net.to(f'cuda:{rank}')", ("D3", "device-by-rank")),
        (
            "dist.init_process_group()\ntorch.cuda.set_device(local_rank)",
            ("D1", "device-after-group"),
        ),
        (
            "m = DistributedDataParallel(net, find_unused_parameters=True); world_size",
            ("D8", "unused-parameters"),
        ),
        (f"class D(IterableDataset): pass\n{DDP}", ("D9", "uneven-inputs")),
        (f"net = nn.BatchNorm2d(3)\n{DDP}", ("D10", "batch-norm")),
        ("m = DDP(net)", ("D11", "effective-batch")),
        ("m = FSDP(net)", ("D12", "one-unit")),
        ("fully_shard(net)", ("D12", "one-unit")),
        ("p = MixedPrecision(param_dtype=torch.bfloat16)", ("D14", "mixed-precision")),
        ("c = FullStateDictConfig(rank0_only=True)", ("D15", "full-state-dict")),
        (
            "engine, o, _, _ = deepspeed.initialize(model=net)\nloss.backward()",
            ("D18", "bare-backward"),
        ),
        (
            """
            for batch in loader:
                try:
                    model(batch).backward()
                except RuntimeError:
                    continue
            """,
            ("D20", "swallowed-exception"),
        ),
        ("if rank == 0:\n    dist.barrier()", ("D21", "guarded-collective")),
        (
            "if accelerator.is_main_process:\n    accelerator.wait_for_everyone()",
            ("D21", "guarded-collective"),
        ),
        (
            "from torch.distributed import all_reduce\nif not rank:\n    all_reduce(x)",
            ("D21", "guarded-collective"),
        ),
        (
            """
            def save():
                if rank != 0:
                    return
                write()
                dist.barrier()
            """,
            ("D21", "guarded-exit"),
        ),
        (f"s = DistributedSampler(d)\n{DDP}", ("D22", "set-epoch")),
        (f"l = DataLoader(d, 4)\n{DDP}", ("D22", "no-sampler")),
        ("dist.init_process_group()\ntorch.save(model, 'm.pt')", ("D23", "racing-writes")),
    ],
)
def test_condition_of_the_playbook_is_found_in_a_script(
    source: str, expected: tuple[str, str]
) -> None:
    assert checks(source) == [expected]


def test_d23_only_who_has_left_before_does_not_write() -> None:
    source = """
    def f():
        {0}
        torch.save(m, 'm')
        {1}
    init_distributed()
    """
    leaves = "if rank != 0: return"
    assert ("D23", "racing-writes") in checks(source.format("pass", leaves))
    assert checks(source.format(leaves, "pass")) == []


def test_d13_sharding_across_nodes() -> None:
    source = "m = FSDP(net, auto_wrap_policy=p, sharding_strategy=ShardingStrategy.{})"
    assert checks(source.format("FULL_SHARD"), nodes=2) == [("D13", "sharding-strategy")]
    assert checks(source.format("FULL_SHARD"), nodes=1) == []
    assert checks(source.format("HYBRID_SHARD"), nodes=2) == []


@pytest.mark.parametrize(
    "source",
    [
        "local_rank = int(os.environ['LOCAL_RANK'])\ntorch.cuda.set_device(local_rank)",
        "torch.cuda.set_device(rank % torch.cuda.device_count())",
        "if rank == 0:\n    print('x')\ndist.barrier()",
        "if rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(y, 0)",
        "if rank == 0:\n    dist.barrier(group=leaders)",
        "if rank == 0:\n    queue.gather(x)",
        "dist.init_process_group()\nif rank == 0:\n    torch.save(m, 'm.pt')",
        "dist.init_process_group()\ntorch.save(m, f'm{rank}.pt')",
        "def f():\n    if rank != 0:\n        return\n    torch.save(m, 'm')\ninit_distributed()",
        "loader = DataLoader(data)",
        f"{DDP}\ns = DistributedSampler(d)\na = DataLoader(d, sampler=s)\nb = DataLoader(e)\n"
        "s.set_epoch(1)",
        "for l in net.layers:\n    fully_shard(l)\nfully_shard(net)",
        "try:\n    import apex\nexcept ImportError:\n    apex = None",
        f"net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3))\n{DDP}",
        "engine, *_ = deepspeed.initialize(model=net)\nengine.backward(loss)\nengine.step()",
        "p = MixedPrecision(param_dtype=a, reduce_dtype=b, buffer_dtype=c)",
        "for b in l:\n    try:\n        step(b).backward()\n    except OSError:\n        raise",
    ],
)
def test_correct_programs_are_left_alone(source: str) -> None:
    assert checks(source) == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "zero-offload"),
        ({"zero_optimization": {"stage": 7}}, "zero-stage"),
        ({"zero_optimization": {"stage": 3}}, "zero-stage"),
        ({"zero_optimization": {"stage": 1}}, None),
    ],
)
def test_d16_unsuitable_zero_stage_is_found(
    config: dict[str, object], expected: str | None
) -> None:
    findings = list(check_stage(config))
    assert [f.check for f in findings] == ([expected] if expected else [])
    assert all(f.playbook == "D16" for f in findings)


def test_d17_configuration_that_overlaps() -> None:
    def found(config: dict[str, object], **options: str) -> list[str]:
        return [f.check for f in check_overlap(config, options)]

    assert found({"fp16": {"enabled": True}, "bf16": {"enabled": True}}) == ["precision"]
    twice = {"gradient_accumulation_steps": 4}
    assert found(twice, **{"gradient-accumulation-steps": "8"}) == ["set-twice"]
    assert found(twice, **{"gradient-accumulation-steps": "4"}) == []
    assert (
        found({"gradient_accumulation_steps": "auto"}, **{"gradient-accumulation-steps": "8"}) == []
    )
    sizes = {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}
    assert found(sizes | {"gradient_accumulation_steps": 2}) == ["batch-size"]


def test_d17_configuration_named_by_the_command(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"gradient_clipping": 1.0}))
    line = "deepspeed --num_gpus=1 t.py --deepspeed ds.json --gradient_clipping 0.5"
    s = Surroundings(env={}, cwd=str(tmp_path), command=tuple(line.split()))
    assert [f.check for f in check_deepspeed(s, None)] == ["set-twice"]
    (tmp_path / "ds.json").write_text("{")
    assert [f.check for f in check_deepspeed(s, None)] == ["deepspeed-config"]
