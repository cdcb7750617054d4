"""No command prints what a terminal would obey, whatever its evidence says."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import orjson

from hangscope.cli import COMMANDS
from hangscope.report.escape import visible, visible_json
from tests.called import called

PACKAGE = Path(__file__).parents[2] / "hangscope"


PRINTING = {
    "cli/console.py": "all commands",
    "report/safe_console.py": "the console of reports",
    "monitor/log_output.py": "the monitor, in the job's log",
    "monitor/__main__.py": "the monitor's end, before anything is imported",
    "recording/warn_once.py": "the recorder",
    "autoload.py": "one line about HANGSCOPE itself, by repr",
    "pytest_guard.py": "the report of a test that hangs, made by report_text",
    # Read by the process that has started them, and by nobody else:
    "monitor/hardware/probe.py": "JSON",
    "recording/compiled/trial.py": "ok",
}
"""The only modules that print, and what."""
_CALLS = re.compile(
    r"click\.s?echo|print|(?:\w+\.)*Console|sys\.(?:__)?std(?:out|err)(?:__)?(?:\.buffer)?\.write\w*"
)


def _may_print(function: ast.expr) -> bool:
    """Whether it is worth the time to write it out."""
    name = getattr(function, "attr", getattr(function, "id", ""))
    return name in ("echo", "secho", "print", "Console") or name.startswith("write")


def test_only_few_modules_print() -> None:
    found: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not _may_print(node.func):
                continue
            called_as = ast.unparse(node.func)
            if _CALLS.fullmatch(called_as):
                name = str(path.relative_to(PACKAGE))
                found.setdefault(name, []).append(f"{node.lineno} {called_as}")
    assert not {name: where for name, where in found.items() if name not in PRINTING}
    assert found.keys() <= PRINTING.keys()


CONTROLS = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
HOSTILE = "\x1b]0;owned\x07 \x9b31m \u202e \u200b \x7f \ufeff \U000e0041 é 名"


def test_nothing_invisible_is_left_and_nothing_else_changes() -> None:
    shown = visible(HOSTILE + "\n\tnext")
    assert not re.search(CONTROLS, shown)
    assert shown.endswith("é 名\n\tnext")
    document = orjson.dumps({"x": [HOSTILE, 1], HOSTILE: None}, option=orjson.OPT_INDENT_2)
    assert orjson.loads(visible_json(document)) == orjson.loads(document)
    assert not re.search(CONTROLS, visible_json(document).decode())


def hostile_evidence(folder: Path) -> Path:
    """A run whose every text is hostile: a dump, a log, stacks, a fixture's expectation."""
    dumps = folder / "case\x1b[31m" / "dumps"
    dumps.mkdir(parents=True)
    frames = [{"name": f"f{HOSTILE}", "filename": f"/x{HOSTILE}.py", "line": 3}]
    for rank in range(2):
        entry = {
            "record_id": 1, "pg_id": 0, "process_group": ["0", f"dp{HOSTILE}"],
            "collective_seq_id": 1 + rank, "p2p_seq_id": 0, "op_id": 1, "is_p2p": False,
            "profiling_name": f"nccl:all_reduce{HOSTILE}", "time_created_ns": 1,
            "state": "scheduled",
            "input_sizes": [[4]], "input_dtypes": [f"Float{HOSTILE}"], "output_sizes": [[4]],
            "output_dtypes": ["Float"], "frames": frames, "timeout_ms": 600000,
            "retired": False,
            "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        }  # fmt: skip
        document = {"version": "2.5", "entries": [entry], "pg_config": {}, "pg_status": {}}
        (dumps / f"r{HOSTILE.replace('/', '')}_{rank}.json").write_bytes(orjson.dumps(document))
    (dumps / "job.log").write_text(
        f"[rank1]: Traceback (most recent call last):\n"
        f'[rank1]:   File "/x{HOSTILE}.py", line 3, in f{HOSTILE}\n'
        f"[rank1]: RuntimeError: {HOSTILE}\n",
        encoding="utf-8",
    )
    (dumps.parent / "expected.toml").write_text(
        f"story = {json.dumps(HOSTILE)}\n"
        'verdict = "healthy"\nculprits = [1]\nmust_mention = ["\\u001b[31m"]\n'
    )
    return dumps


def test_no_command_prints_control_characters_of_the_evidence(tmp_path: Path) -> None:
    dumps = hostile_evidence(tmp_path)
    colour = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    deepspeed = tmp_path / "x.json"
    deepspeed.write_bytes(orjson.dumps({"zero_optimization": {"stage": HOSTILE}}))
    script = tmp_path / f"a{HOSTILE.replace('/', '')}.py"
    script.write_text("if rank == 0:\n    dist.barrier()\n")
    commands = {
        "analyze": [
            [str(dumps)], [str(dumps), "--json"], [str(dumps), "--all", "--rank", "1"],
            [str(dumps), "--group", HOSTILE], [HOSTILE],
        ],
        "export": [
            [str(dumps), "--to", form, "-o", str(tmp_path / f"{form}{HOSTILE}")]
            for form in ("flight-recorder", "perfetto", "html", "fixture")
        ],
        "replay": [[str(tmp_path), "-v"], [str(tmp_path), "--json"], [HOSTILE]],
        "doctor": [
            ["--deepspeed-config", str(deepspeed), "--script", str(script)], ["--", HOSTILE],
        ],
        "tui": [[HOSTILE], [str(dumps), "--screenshot", str(tmp_path / "x" / HOSTILE)]],
        "env": [["--torch", HOSTILE], ["--json"]],
        "demo": [[HOSTILE]],
        "compile": [["--into", str(script)]],
        "collect": [
            [str(dumps), "-o", str(tmp_path / "x.hangscope.tar.gz")],
            [HOSTILE, "-o", str(tmp_path / f"x{HOSTILE}")],
            [str(dumps), "-o", "x", "--on", HOSTILE],
        ],
        "mcp": [[HOSTILE]],
        "slow": [[str(dumps)], [str(dumps), "--json"], [HOSTILE]],
        "run": [["--dir", str(script), "--", "true"], ["--", HOSTILE]],
    }  # fmt: skip
    assert set(commands) == set(COMMANDS)
    for command, calls in commands.items():
        for arguments in calls:
            if command == "run":  # sets signal handlers
                run = subprocess.run(
                    [sys.executable, "-m", "hangscope", command, *arguments], capture_output=True,
                    text=True, env={**os.environ, **colour}, timeout=60, cwd=tmp_path,
                )  # fmt: skip
            else:
                run = called(command, *arguments, cwd=tmp_path, **colour)
            said = run.stdout + run.stderr
            assert said.strip(), (command, arguments)
            assert run.returncode in (0, 1, 2, 127), (command, arguments, run.stderr)
            # Without what the program itself styles.
            said = re.sub(r"\x1b\[[\d;]*m", "", said)
            assert not re.search(CONTROLS, said), (command, arguments, ascii(said))
