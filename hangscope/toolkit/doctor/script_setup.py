"""D3, D8, D10 to D15 and D18 in a script: how the model is wrapped, saved and stepped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hangscope.toolkit.doctor.model import ERROR, NOTE, WARNING, Finding
from hangscope.toolkit.doctor.script_model import Script, is_true, keyword, last_name

_DDP = ("DistributedDataParallel", "DDP")
_FSDP = ("FullyShardedDataParallel", "FSDP")
_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")


def check_setup(script: Script, nodes: int = 1) -> Iterator[Finding]:
    """Check the program's source; ``nodes`` is taken from the launch command."""
    yield from _devices(script)
    yield from _ddp(script)
    yield from _fsdp(script, nodes)
    yield from _mixed_precision(script)
    yield from _state_dicts(script)
    yield from _deepspeed(script)


def _devices(script: Script) -> Iterator[Finding]:
    binds = list(script.calls("set_device"))
    for call in binds:
        if call.args and script.rank_kind(call.args[0]) == "global":
            yield _wrong_rank(script, call)
    for call in script.calls("device", "to", "cuda"):
        for argument in call.args[:1]:
            if any(_is_cuda_of_global_rank(script, part) for part in ast.walk(argument)):
                yield _wrong_rank(script, call)
    for wrap in script.calls(*_DDP):
        ids = keyword(wrap, "device_ids")
        if isinstance(ids, ast.List) and any(script.rank_kind(e) == "global" for e in ids.elts):
            yield _wrong_rank(script, wrap)
    inits = list(script.calls("init_process_group"))
    if inits and binds:
        first_init = min(call.lineno for call in inits)
        late = [call for call in binds if call.lineno > first_init]
        if len(late) == len(binds) and _same_function(script, inits[0], late[0]):
            yield Finding(
                WARNING,
                "device-after-group",
                "the device is set after the process group is made: communicators may be made on "
                "device 0",
                "Call torch.cuda.set_device(LOCAL_RANK) before init_process_group.",
                "D1",
                script.where(late[0]),
            )


def _is_cuda_of_global_rank(script: Script, node: ast.AST) -> bool:
    if not isinstance(node, ast.JoinedStr):
        return False
    text = "".join(str(v.value) for v in node.values if isinstance(v, ast.Constant))
    return text.startswith("cuda:") and any(
        isinstance(v, ast.FormattedValue) and script.rank_kind(v.value) == "global"
        for v in node.values
    )


def _wrong_rank(script: Script, call: ast.Call) -> Finding:
    return Finding(
        ERROR,
        "device-by-rank",
        "the device is indexed by the global rank: on the second node there is no such device",
        "Use LOCAL_RANK: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])).",
        "D3",
        script.where(call),
    )


def _same_function(script: Script, a: ast.AST, b: ast.AST) -> bool:
    def owner(node: ast.AST) -> ast.AST | None:
        return next((p for p in script.ancestors(node) if isinstance(p, ast.FunctionDef)), None)

    return owner(a) is owner(b)


def _ddp(script: Script) -> Iterator[Finding]:
    wraps = list(script.calls(*_DDP))
    if not wraps:
        return
    for wrap in wraps:
        if is_true(keyword(wrap, "find_unused_parameters")):
            yield Finding(
                NOTE,
                "unused-parameters",
                "find_unused_parameters=True walks the graph at every step and hides heads that "
                "fell out of the loss",
                "Use every output in the loss, and drop the option unless branches are skipped on "
                "purpose.",
                "D8",
                script.where(wrap),
            )
    if script.mentions(*_NORMS) and not script.mentions("convert_sync_batchnorm", "SyncBatchNorm"):
        yield Finding(
            WARNING,
            "batch-norm",
            "BatchNorm under DDP: every rank has statistics of its own part of the batch only",
            "model = nn.SyncBatchNorm.convert_sync_batchnorm(model) before DDP.",
            "D10",
            script.where(wraps[0]),
        )
    adapts = script.mentions("world_size", "get_world_size", "num_processes", "WORLD_SIZE")
    if not adapts and "WORLD_SIZE" not in {
        n.value for n in ast.walk(script.tree) if isinstance(n, ast.Constant)
    }:
        yield Finding(
            NOTE,
            "effective-batch",
            "nothing here depends on the world size: on n ranks the effective batch is n times "
            "larger at the same learning rate",
            "Rescale the learning rate, or record the effective batch with the results.",
            "D11",
            script.where(wraps[0]),
        )


def _fsdp(script: Script, nodes: int) -> Iterator[Finding]:
    for wrap in script.calls(*_FSDP):
        if keyword(wrap, "auto_wrap_policy") is None and not any(
            k.arg is None for k in wrap.keywords
        ):
            yield _one_unit(script, wrap, "FSDP without auto_wrap_policy")
        strategy = keyword(wrap, "sharding_strategy")
        name = last_name(strategy) if strategy is not None else "FULL_SHARD"
        if nodes > 1 and name in ("FULL_SHARD", "SHARD_GRAD_OP"):
            yield Finding(
                NOTE,
                "sharding-strategy",
                f"{name} gathers parameters across {nodes} nodes",
                "HYBRID_SHARD shards within a node; SHARD_GRAD_OP gathers less often if it fits.",
                "D13",
                script.where(wrap),
            )
    shards = list(script.calls("fully_shard"))
    looped = any(
        isinstance(p, (ast.For, ast.While, ast.ListComp))
        for c in shards
        for p in script.ancestors(c)
    )
    if len(shards) == 1 and not looped:
        yield _one_unit(script, shards[0], "fully_shard on the whole model only")


def _one_unit(script: Script, call: ast.Call, what: str) -> Finding:
    return Finding(
        WARNING,
        "one-unit",
        f"{what}: all parameters are gathered at once",
        "Wrap every block, then the model.",
        "D12",
        script.where(call),
    )


def _mixed_precision(script: Script) -> Iterator[Finding]:
    fields = {
        "MixedPrecision": ("param_dtype", "reduce_dtype", "buffer_dtype"),
        "MixedPrecisionPolicy": ("param_dtype", "reduce_dtype"),
    }
    for name, wanted in fields.items():
        for call in script.calls(name):
            given = {k.arg for k in call.keywords}
            missing = [f for f in wanted[len(call.args) :] if f not in given]
            if missing and None not in given:
                yield Finding(
                    WARNING,
                    "mixed-precision",
                    f"{name} leaves {', '.join(missing)} to its default",
                    "Set all of them; param_dtype=bfloat16 with reduce_dtype=float32 is safe.",
                    "D14",
                    script.where(call),
                )


def _state_dicts(script: Script) -> Iterator[Finding]:
    for call in script.calls("FullStateDictConfig"):
        missing = [
            name for name in ("rank0_only", "offload_to_cpu") if not is_true(keyword(call, name))
        ]
        if missing:
            yield _full_state(script, call, f"FullStateDictConfig without {' and '.join(missing)}")
    names = [
        n
        for n in ast.walk(script.tree)
        if isinstance(n, ast.Attribute) and n.attr == "FULL_STATE_DICT"
    ]
    if names and not script.mentions("FullStateDictConfig"):
        yield _full_state(script, names[0], "FULL_STATE_DICT on every rank")


def _full_state(script: Script, node: ast.AST, what: str) -> Finding:
    return Finding(
        WARNING,
        "full-state-dict",
        f"{what}: the whole model is gathered where it does not fit",
        "Use torch.distributed.checkpoint with sharded states, or rank0_only=True and "
        "offload_to_cpu=True.",
        "D15",
        script.where(node),
    )


def _deepspeed(script: Script) -> Iterator[Finding]:
    if not any(
        last_name(getattr(call.func, "value", None)) == "deepspeed"
        for call in script.calls("initialize")
    ):
        return
    engines = {
        last_name(target.elts[0] if isinstance(target, ast.Tuple) else target)
        for call in script.calls("initialize")
        for parent in [script.parents.get(call)]
        if isinstance(parent, ast.Assign)
        for target in parent.targets
    }
    for call in script.calls("backward"):
        owner = last_name(getattr(call.func, "value", None))
        if owner not in engines and "engine" not in owner and not call.args:
            yield Finding(
                ERROR,
                "bare-backward",
                f"{owner or 'loss'}.backward() under DeepSpeed skips scaling, accumulation and the "
                "reduction",
                f"Call {next(iter(sorted(engines)), 'engine')}.backward(loss), then its step().",
                "D18",
                script.where(call),
            )
