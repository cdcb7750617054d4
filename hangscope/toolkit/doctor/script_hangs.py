"""D20 to D23 and D9 in a script: code that makes ranks diverge."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hangscope.toolkit.doctor.model import ERROR, WARNING, Finding
from hangscope.toolkit.doctor.script_model import Script, keyword, last_name

_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_SAVERS = ("save", "save_pretrained", "savez", "dump")


def check_hangs(script: Script) -> Iterator[Finding]:
    """Find every hang that is visible in the program's source."""
    yield from _guarded_collectives(script)
    yield from _swallowed(script)
    yield from _samplers(script)
    yield from _writes(script)


def _guarded_collectives(script: Script) -> Iterator[Finding]:
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.If) or not script.rank_guard(node.test):
            continue
        inside, other = _collectives(script, node.body), _collectives(script, node.orelse)
        for call in inside + other:
            name = last_name(call.func)
            twins = other if call in inside else inside
            if name in {last_name(twin.func) for twin in twins}:
                continue  # both branches do it
            yield Finding(
                ERROR,
                "guarded-collective",
                f"{name} runs only on the ranks for which line {node.test.lineno} holds; the "
                "others never join it",
                "Run it on all ranks; guard only the side effect (printing, writing).",
                "D21",
                script.where(call),
            )
        leaves = any(isinstance(s, _LEAVES) or _exits(s) for s in node.body)
        after = _following(script, node) if leaves and not inside else []
        for call in _collectives(script, after)[:1]:
            yield Finding(
                ERROR,
                "guarded-exit",
                f"the ranks for which line {node.test.lineno} holds leave here and never reach "
                f"{last_name(call.func)} at line {call.lineno}",
                "Let every rank reach it; skip only the work in between.",
                "D21",
                script.where(node),
            )


def _collectives(script: Script, body: list[ast.stmt]) -> list[ast.Call]:
    return [
        node
        for statement in body
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and script.is_collective(node) and not _in_subgroup(node)
    ]


def _in_subgroup(call: ast.Call) -> bool:
    """Whether the call names a group: a subgroup's collective runs on its members only."""
    group = keyword(call, "group")
    return group is not None and not isinstance(group, ast.Constant)


def _exits(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and last_name(statement.value.func) in ("exit", "_exit", "quit")
    )


def _following(script: Script, node: ast.If) -> list[ast.stmt]:
    """Statements skipped by an exit inside ``node``: the rest of its loop or function."""
    rest: list[ast.stmt] = []
    child: ast.AST = node
    for parent in script.ancestors(node):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and child in block:
                rest += block[block.index(child) + 1 :]
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While)):
            break
        child = parent
    return rest


def _swallowed(script: Script) -> Iterator[Finding]:
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Try):
            continue
        in_loop = any(isinstance(a, (ast.For, ast.While)) for a in script.ancestors(node))
        steps = any(
            isinstance(call, ast.Call)
            and (last_name(call.func) == "backward" or script.is_collective(call))
            for statement in node.body
            for call in ast.walk(statement)
        )
        if not in_loop or not steps:
            continue
        for handler in node.handlers:
            raises = any(isinstance(n, ast.Raise) or _is_exit(n) for n in ast.walk(handler))
            if not raises:
                yield Finding(
                    WARNING,
                    "swallowed-exception",
                    "a rank that gets an exception here goes on without the collectives that the "
                    "others are in",
                    "Let it raise, or let all ranks decide together to skip the step.",
                    "D20",
                    script.where(handler),
                )


def _is_exit(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and _exits(node)


def _samplers(script: Script) -> Iterator[Finding]:
    samplers = list(script.calls("DistributedSampler"))
    if samplers and not script.mentions("set_epoch"):
        yield Finding(
            WARNING,
            "set-epoch",
            "DistributedSampler without set_epoch: every epoch has the same order",
            "Call sampler.set_epoch(epoch) at the start of each epoch.",
            "D22",
            script.where(samplers[0]),
        )
    parallel = script.mentions("DistributedDataParallel", "fully_shard", "FullyShardedDataParallel")
    for loader in script.calls("DataLoader"):
        names = {k.arg for k in loader.keywords}
        if parallel and not samplers and not names & {"sampler", "batch_sampler", None}:
            yield Finding(
                WARNING,
                "no-sampler",
                "DataLoader without a sampler in a parallel job: every rank sees all the data",
                "Use DistributedSampler, with the same drop_last on every rank.",
                "D22",
                script.where(loader),
            )
    iterable = [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.ClassDef)
        and any(last_name(base) == "IterableDataset" for base in node.bases)
    ]
    if iterable and parallel and not script.mentions("Join", "join"):
        yield Finding(
            WARNING,
            "uneven-inputs",
            f"{iterable[0].name} is an IterableDataset: ranks may get different numbers of batches "
            "and wait for ever at the end of an epoch",
            "Cut every rank to the same number, or train within Join([model]).",
            "D9",
            script.where(iterable[0]),
        )


def _writes(script: Script) -> Iterator[Finding]:
    if not script.mentions("init_process_group", "init_distributed", "Accelerator"):
        return
    for call in script.calls(*_SAVERS):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if last_name(call.func) in ("save", "dump") and last_name(owner) not in ("torch", "pickle"):
            continue
        guarded = any(
            isinstance(a, ast.If) and script.rank_guard(a.test) for a in script.ancestors(call)
        )
        early = any(_returns_before(script, call))
        ranked = any(
            isinstance(n, (ast.Name, ast.Attribute, ast.Call)) and script.rank_kind(n)
            for argument in call.args
            for n in ast.walk(argument)
        )
        if not (guarded or early or ranked):
            yield Finding(
                WARNING,
                "racing-writes",
                "every rank writes this file at the same time",
                "Write on rank 0 to a temporary name, rename it, then let all ranks meet in a "
                "barrier; sharded states go through torch.distributed.checkpoint.",
                "D23",
                script.where(call),
            )


def _returns_before(script: Script, call: ast.Call) -> Iterator[bool]:
    """Whether other ranks have already left the function: ``if rank != 0: return``."""
    for parent in script.ancestors(call):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in parent.body:
                if isinstance(statement, ast.If) and statement.lineno < call.lineno:
                    leaves = any(isinstance(s, ast.Return) for s in statement.body)
                    yield leaves and script.rank_guard(statement.test)
