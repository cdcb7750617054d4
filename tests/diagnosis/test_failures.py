"""Messages of failures are read in one place, which classifies each failure once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hangscope.diagnosis.processes.failures import FailureKind
from hangscope.diagnosis.processes.process_state import process_of
from hangscope.trace.model import ExceptionFacts, ExitFacts, RankFacts

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


def _failed(message: str, kind: str = "RuntimeError", at_ns: int = 5) -> RankFacts:
    exception = ExceptionFacts(kind, message, at_ns=at_ns, is_main_thread=True)
    return RankFacts(0, exception=exception, exit=ExitFacts("exception", 1, at_ns=9))


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (_failed("shape mismatch in layer 3"), FailureKind.OWN),
        (_failed("[gloo/transport/tcp/pair.cc] Connection closed by peer"), FailureKind.ECHO),
        (_failed("", "KeyboardInterrupt"), FailureKind.TOLD),
        (RankFacts(0, exit=ExitFacts("signal", signal=6, at_ns=9)), FailureKind.ABORTED),
        (RankFacts(0), FailureKind.UNKNOWN),
    ],
    ids=["own", "echo", "told", "aborted", "unknown"],
)
def test_kinds_of_failures(facts: RankFacts, kind: FailureKind) -> None:
    failure = process_of(facts, None).failure
    assert failure.kind is kind
    assert (failure.from_ns, failure.until_ns) in ((5, 9), (9, 9), (0, 0))


def test_one_fault_on_several_ranks_has_one_template() -> None:
    first, second = (process_of(_failed(f"bad row {n}"), None).failure for n in (3, 41))
    assert first.template == second.template
