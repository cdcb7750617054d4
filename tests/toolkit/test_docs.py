"""The tables in the documentation name existing tests, and no row is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def source_of(path: Path) -> str:
    """Source of a test file together with the parameters of its tests."""
    assert path.is_file(), f"{path} does not exist"
    return path.read_text()


def test_playbook_has_every_row_and_names_real_tests() -> None:
    text = (ROOT / "docs/playbook.md").read_text()
    rows = re.findall(r"^\| (D\d+) \|.*$", text, re.MULTILINE)
    assert rows == [f"D{n}" for n in range(1, 24)]
    for line in text.splitlines():
        if not line.startswith("| D"):
            continue
        cells = line.split("|")
        references = re.findall(r"`([^`]+)`", cells[5])
        assert references, line
        for reference in references:
            module, _, name = reference.partition("::")
            known = module.startswith("doctor_")
            path = f"toolkit/test_{module}.py" if known else module
            source = source_of(ROOT / "tests" / path)
            if name:
                exact = name.split("[")[0].removesuffix("*")
                assert f"def {exact}" in source, reference


def test_toolkit_table_names_real_tests() -> None:
    text = (ROOT / "docs/toolkit.md").read_text()
    table = text[text.index("| capability | test |") :]
    rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
    assert len(rows) > 25
    for row in rows:
        module = ""
        for reference in re.findall(r"`([^`]+)`", row.split("|")[2]):
            if "::" in reference:
                module, reference = reference.split("::")
            name, _, parameter = reference.partition("[")
            source = source_of(ROOT / "tests/toolkit" / module)
            if name:
                assert f"def {name}" in source, (row, name)
            if parameter:
                assert f'"{parameter.rstrip("]")}"' in source, (row, parameter)


def test_every_function_of_the_toolkit_has_a_docstring_that_is_a_sentence() -> None:
    for path in (ROOT / "hangscope/toolkit").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            public = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_"
            if public:
                text = ast.get_docstring(node)
                assert text, f"{path.name}: {node.name}"
                assert text.split("\n\n")[0].rstrip()[-1] in ".:;?", f"{path.name}: {node.name}"
