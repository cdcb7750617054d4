"""The coverage table of ``docs/recorder.md``, out of the jobs that show it.

python -m tests.recording.coverage            # rewrites the table
"""

from __future__ import annotations

import ast
import re
import sys

from tests.real_jobs import ROOT
from tests.recording.launcher import JOBS

DOCUMENT = ROOT / "docs" / "recorder.md"
BEGIN = "<!-- coverage: made by python -m tests.recording.coverage -->"
END = "<!-- end of coverage -->"
_MANNERS = ("sync", "async")


def checks_of(script: str) -> list[str]:
    """The names of a job's checks, in order, from its source."""
    tree = ast.parse((JOBS / f"{script}.py").read_text())
    names: list[str] = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "check"
        ):
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                names.append(str(argument.value))
            else:
                names += [f"{m}:{op}" for op in _eager_calls() for m in _MANNERS]
    return names


def table() -> str:
    """The table, in Markdown."""
    rows = ["| way of issuing | shown by |", "|---|---|"]
    for script in ("collectives_job", "parallel_job"):
        grouped: dict[str, list[str]] = {}
        for name in checks_of(script):
            manner, colon, rest = name.partition(":")
            if colon and manner in _MANNERS:
                grouped.setdefault(f"`{rest}`", []).append(manner)
            else:
                grouped.setdefault(name, [])
        for name, manners in grouped.items():
            label = f"{name}, {' and '.join(manners)}" if manners else name
            rows.append(f"| {label} | `tests/recording/jobs/{script}.py` |")
    return "\n".join(rows)


def document_with_table(text: str) -> str:
    """A document with its table renewed."""
    return re.sub(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}",
        lambda _: f"{BEGIN}\n{table()}\n{END}",
        text,
        flags=re.DOTALL,
    )


def _eager_calls() -> list[str]:
    """The keys of ``EAGER``, which is the file's one table."""
    for node in ast.parse((JOBS / "eager.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return [str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)]
    raise LookupError("eager.py has no table")


if __name__ == "__main__":
    DOCUMENT.write_text(document_with_table(DOCUMENT.read_text()))
    sys.exit(0)
