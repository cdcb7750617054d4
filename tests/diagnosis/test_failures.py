"""Messages of failures are read in one place, which classifies each failure once."""

from __future__ import annotations

import ast
from pathlib import Path

DIAGNOSIS = Path(__file__).parents[2] / "hangscope" / "diagnosis"
READ_MESSAGES = {"processes/failures.py", "processes/embedded_exceptions.py"}
"""The second takes tracebacks out of messages, before anything is classified."""
READ_LAST_LINES = {"no_cause/final_tracebacks.py"}
"""Where a log has nothing but last words, these say in which call a rank waited."""
_TEXTS = {"end_text", "message", "summary"}


def _modules() -> list[tuple[str, ast.Module]]:
    """All modules but those that put findings into words."""
    paths = (path for path in DIAGNOSIS.rglob("*.py") if path.parent.name != "wording")
    return [(str(p.relative_to(DIAGNOSIS)), ast.parse(p.read_text())) for p in sorted(paths)]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _TEXTS


def _reads_messages(tree: ast.Module) -> bool:
    """Whether a regular expression, or a comparison, is applied to the words of a failure."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            searched = node.func.attr in ("search", "match", "fullmatch")
            if searched and any(_is_text(argument) for argument in node.args):
                return True
            if node.func.attr in ("startswith", "endswith") and _is_text(node.func.value):
                return True
    return False


def test_only_one_module_reads_what_failures_say() -> None:
    found = {name for name, tree in _modules() if _reads_messages(tree)}
    assert found <= READ_MESSAGES | READ_LAST_LINES | {"processes/process_state.py"}
