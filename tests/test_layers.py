"""Layers import in one direction only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "hangscope"

MAY_IMPORT = {
    "ring": set(),
    "nccl_plugin": {"ring"},
    "recording": {"nccl_plugin", "ring"},
    "trace": {"ring"},
    "diagnosis": {"trace"},
    "lateness": {"trace"},
    "report": {"diagnosis", "lateness", "trace"},
    "monitor": {"lateness", "nccl_plugin", "replay", "report", "diagnosis", "trace", "ring"},
    "tui": {"lateness", "report", "diagnosis", "trace", "ring"},
    "toolkit": {"ring", "trace", "recording"},
    "demos": {"ring", "trace"},
    "notebook": {"lateness", "report", "diagnosis", "trace"},
    "replay": {"report", "diagnosis", "trace", "ring"},
}
MAY_IMPORT_TORCH = {"recording", "toolkit", "demos"}
ON_REQUEST = {
    # Writing a dump on request is the one thing the recorder needs a report for.
    ("recording", "report"),
    ("recording", "trace"),
    # HANGSCOPE_CHECK_REDUCE hands samples to the toolkit's reference checker.
    ("recording", "toolkit"),
}
"""Imports allowed only inside functions."""
FROM_BELOW = {
    "trace": (
        "files",
        "processes",
        "job_selection",
        "nccl",
        "flight_recorder",
        "merging",
        "digests",
        "rings",
        "job_log.lines",
        "job_log.evidence",
        "job_log.rows",
        "job_log.readers",
        "job_log.resolving",
        "job_log",
        "external_reports",
        "live",
        "loading",
        "load",
    ),
    "diagnosis": (
        "records",
        "processes",
        "groups",
        "graph",
        "knowledge",
        "context",
        "cause",
        "exits",
        "waiting",
        "pattern",
        "faults",
        "wording",
        "differences",
        "causes",
        "doubts",
        "no_cause",
        "engine",
    ),
    "toolkit": ("barriers", "environments", "launching", "reductions", "warmup", "doctor"),
}
"""The parts of the large layers; each imports only those before it. What is not listed (the tables
of a trace, the model of a diagnosis, lists of ranks) is below all of them."""


pytestmark = pytest.mark.xdist_group("layers")  # one worker reads the sources, once


@cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """(what, whether at the top of the file) of every import; type-checking blocks excluded."""
    tree = ast.parse(path.read_text())
    found: list[tuple[str, bool]] = []
    waiting: list[tuple[ast.AST, bool]] = [(tree, True)]
    while waiting:
        node, at_top = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, at_top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{alias.name}", at_top) for alias in node.names]
        at_top = at_top and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        # Imports are statements: no expression holds one.
        waiting += [(n, at_top) for n in ast.iter_child_nodes(node) if isinstance(n, _HOLDERS)]
    return tuple(found)


_HOLDERS = (ast.stmt, ast.excepthandler, ast.match_case)


def module_graph() -> dict[str, set[str]]:
    """Every module with the modules of ours that it imports, inside functions too."""
    paths = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in PACKAGE.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        named = {name for name, _ in imports(path)}
        # `from package import module` names the module, `from module import name` what is in it.
        found = {name if name in paths else name.rpartition(".")[0] for name in named}
        graph[module] = (found & set(paths)) - {module}
    return graph


def test_modules_import_each_other_without_circles() -> None:
    try:
        list(TopologicalSorter(module_graph()).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def layer_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0].removesuffix(".py")


@pytest.mark.parametrize("layer", sorted(MAY_IMPORT))
def test_layers_import_only_lower_ones(layer: str) -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        if layer_of(path) != layer:
            continue
        for module, at_top in imports(path):
            if not module.startswith("hangscope."):
                continue
            other = module.split(".")[1]
            allowed = other in MAY_IMPORT[layer] or other in (layer, "_version")
            if not at_top and (layer, other) in ON_REQUEST:
                allowed = True
            if not allowed:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {module}")
    assert not wrong


def test_only_recording_and_toolkit_import_torch_at_the_top() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in PACKAGE.rglob("*.py")
        if layer_of(path) not in MAY_IMPORT_TORCH
        for module, at_top in imports(path)
        if at_top and module.split(".")[0] == "torch"
    ]
    assert not wrong


def test_ring_imports_neither_torch_nor_pandas() -> None:
    wrong = [
        module
        for path in (PACKAGE / "ring").rglob("*.py")
        for module, _ in imports(path)
        if module.split(".")[0] in ("torch", "pandas")
    ]
    assert not wrong


def height_of(module: str) -> int:
    """Position of a module's part within its layer; -1 for what all parts share."""
    _, layer, *rest = module.split(".")
    inside = ".".join(rest)
    parts = [p for p in FROM_BELOW[layer] if f"{inside}.".startswith(f"{p}.")]
    return FROM_BELOW[layer].index(max(parts, key=len)) if parts else -1


@pytest.mark.parametrize("layer", sorted(FROM_BELOW))
def test_parts_of_a_layer_import_only_lower_ones(layer: str) -> None:
    wrong = []
    for path in (PACKAGE / layer).rglob("*.py"):
        if path == PACKAGE / layer / "__init__.py":
            continue
        own = ".".join(("hangscope", *path.relative_to(PACKAGE).with_suffix("").parts))
        for module, _ in imports(path):
            if module.startswith(f"hangscope.{layer}.") and height_of(module) > height_of(own):
                wrong.append(f"{own} imports {module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("layer", sorted(FROM_BELOW))
def test_every_part_of_a_layer_is_listed(layer: str) -> None:
    folders = {p.parent.relative_to(PACKAGE / layer) for p in (PACKAGE / layer).rglob("*.py")}
    there = {".".join(folder.parts) for folder in folders if folder.parts}
    listed = set(FROM_BELOW[layer])
    assert there <= listed
    files = {p.stem for p in (PACKAGE / layer).glob("*.py")}
    assert listed - there <= files


KNOWS_SOURCES = PACKAGE / "diagnosis" / "observability.py"
"""Where the diagnosis asks what evidence can show; the rest of it does not know kinds of files."""
BACKENDS = {"gloo", "nccl", "mpi", "ucc", "xccl", "hccl"}


def names_of_sources(tree: ast.Module, *, tells: bool) -> Iterator[str]:
    """What in a module names a kind of source, or a backend; ``tells``: it makes sentences."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if "formats" in (alias.name, (node.module or "").rpartition(".")[2]):
                    yield f"line {node.lineno}: imports {node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and id(node) not in called:
            if node.attr in ("format", "version", "newest_lost") or node.attr.startswith("only_"):
                yield f"line {node.lineno}: .{node.attr}"
        elif isinstance(node, ast.Constant) and node.value in BACKENDS and not tells:
            yield f"line {node.lineno}: {node.value!r}"


def test_one_module_of_the_diagnosis_knows_kinds_of_sources() -> None:
    """So that a second source beside the first changes only what it tells itself."""
    found = {}
    for path in (PACKAGE / "diagnosis").rglob("*.py"):
        tells = path.parent.name == "wording"
        found[path] = [*names_of_sources(ast.parse(path.read_text()), tells=tells)]
    assert found.pop(KNOWS_SOURCES)
    assert {path.relative_to(PACKAGE): lines for path, lines in found.items() if lines} == {}
