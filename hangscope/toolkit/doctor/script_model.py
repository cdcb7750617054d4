"""A training script's syntax tree, with the few queries that the checks need."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

COLLECTIVES = frozenset(
    {
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "monitored_barrier",
        "new_group",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
        "wait_for_everyone",
    }
)
_OWNERS = frozenset(
    {"dist", "distributed", "hangscope", "accelerator", "deepspeed", "comm", "c10d"}
)
_GLOBAL_RANK = frozenset({"rank", "global_rank", "world_rank"})
_LOCAL_RANK = frozenset({"local_rank", "localrank"})
_MAIN = frozenset(
    {"is_main_process", "is_rank_zero", "is_rank_0", "is_master", "is_main", "master_process"}
)


@dataclass(slots=True)
class Script:
    """A parsed script. ``path`` is for messages."""

    path: str
    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    collective_names: frozenset[str] = frozenset()
    """Collectives imported by name, to recognise a bare ``barrier()``."""
    rank_names: dict[str, str] = field(default_factory=dict)
    """Variables that hold a rank: name to ``global`` or ``local``."""

    def where(self, node: ast.AST) -> str:
        """``file:line`` of a node."""
        return f"{self.path}:{getattr(node, 'lineno', 0)}"

    def calls(self, *names: str, under: ast.AST | None = None) -> Iterator[ast.Call]:
        """Calls whose function's last name is one of ``names``, in source order."""
        for node in ast.walk(under or self.tree):
            if isinstance(node, ast.Call) and last_name(node.func) in names:
                yield node

    def mentions(self, *names: str) -> bool:
        """Whether a name, attribute or imported name occurs anywhere."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and node.id in names:
                return True
            if isinstance(node, ast.Attribute) and node.attr in names:
                return True
            if isinstance(node, ast.alias) and node.name.rsplit(".", 1)[-1] in names:
                return True
        return False

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Enclosing nodes, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def is_collective(self, call: ast.Call) -> bool:
        """Whether a call is a collective: ``dist.barrier()``, or one imported by name."""
        name = last_name(call.func)
        if name not in COLLECTIVES:
            return False
        if isinstance(call.func, ast.Name):
            return name in self.collective_names
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        return owner is not None and last_name(owner) in _OWNERS

    def rank_kind(self, node: ast.AST) -> str:
        """``global`` or ``local`` if an expression is a rank; else empty."""
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            if name in ("int", "str") and node.args:
                return self.rank_kind(node.args[0])
            if name == "get_rank":
                return "global"
            if name in ("get_local_rank", "get_node_local_rank"):
                return "local"
            if name in ("getenv", "get") and node.args:
                return _of_variable(node.args[0])
            return ""
        if isinstance(node, ast.Subscript):
            return _of_variable(node.slice)
        if isinstance(node, ast.Name):
            known = self.rank_names.get(node.id)
            return known if known is not None else _of_name(node.id)
        if isinstance(node, ast.Attribute):
            return _of_name(node.attr)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return "local"  # rank % devices_per_node
        return ""

    def rank_guard(self, test: ast.AST) -> bool:
        """Whether a condition holds on some ranks only."""
        if isinstance(test, ast.BoolOp):
            return any(self.rank_guard(value) for value in test.values)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.rank_guard(test.operand) or bool(self.rank_kind(test.operand))
        if isinstance(test, ast.Compare):
            sides = [test.left, *test.comparators]
            constant = any(isinstance(side, ast.Constant) and side.value != -1 for side in sides)
            return constant and any(self.rank_kind(side) for side in sides)
        if isinstance(test, ast.Call):
            return last_name(test.func) in _MAIN
        return last_name(test) in _MAIN


def parse_script(source: str, path: str) -> Script:
    """Parse a script.

    Raises
    ------
    SyntaxError
        It is not valid Python.
    """
    tree = ast.parse(source, path)
    script = Script(path, tree)
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            script.parents[child] = node
    script.collective_names = frozenset(
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("torch", "hangscope"))
        for alias in node.names
        if alias.name in COLLECTIVES
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            for name, expression in pairs:
                kind = script.rank_kind(expression)
                if isinstance(name, ast.Name) and kind:
                    script.rank_names[name.id] = kind
    return script


def last_name(node: ast.AST | None) -> str:
    """``c`` of ``a.b.c``; empty for anything but a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def is_true(node: ast.AST | None) -> bool:
    """Whether an expression is the constant ``True``."""
    return isinstance(node, ast.Constant) and node.value is True


def _of_variable(node: ast.AST) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    if value in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        return "global"
    if value in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"):
        return "local"
    return ""


def _of_name(name: str) -> str:
    lowered = name.lower()
    if lowered in _LOCAL_RANK:
        return "local"
    return "global" if lowered in _GLOBAL_RANK else ""
