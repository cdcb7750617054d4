"""Lessons from reviews of such tools that no test of the tools themselves shows."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hangscope
from tests.real_jobs import environment, run_each, worlds
from tests.toolkit.launcher import processes

TOOLKIT = Path(hangscope.__file__).parent / "toolkit"


def test_no_doubled_barriers_or_synchronisations() -> None:
    result = processes("quiet_job", worlds(2))
    result.assert_ok("init_meets_once_before_and_once_after", [0, 1])
    result.assert_ok("each_tool_meets_only_where_it_must", [0, 1])
    result.assert_ok("collectives_only_where_data_must_travel", [0, 1])


def test_no_strategys_options_are_hidden_in_anothers_config() -> None:
    """Warm-up works for FSDP and DDP without any switches for either."""
    for function in (
        hangscope.warmup_training,
        hangscope.warmup_communicators,
        hangscope.sync_parameters,
        hangscope.init_distributed,
    ):
        names = set(inspect.signature(function).parameters)
        assert not {name for name in names if "fsdp" in name or "ddp" in name}, function


def test_larger_numbers_have_names() -> None:
    """Larger numbers have a name at the top of their module."""
    found = []
    for path in TOOLKIT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        inside = [
            node
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for statement in function.body
            for node in ast.walk(statement)
        ]
        found += [
            f"{path.name}:{node.lineno}: {node.value}"
            for node in inside
            if isinstance(node, ast.Constant)
            and type(node.value) in (int, float)
            and abs(node.value) > 300
            and node.value not in (1024, 2**52, 10**3, 10**6, 10**9, 10**12, 65536)
        ]
    assert found == []


def test_one_timeout_per_purpose() -> None:
    """Joining and collectives have a timeout each, and no other argument means the same."""
    parameters = inspect.signature(hangscope.init_distributed).parameters
    assert [name for name in parameters if "timeout" in name] == ["init_timeout", "timeout"]
    source = "".join(path.read_text() for path in TOOLKIT.rglob("*.py"))
    for unread in ("NCCL_TIMEOUT", "TORCH_DIST_INIT_TIMEOUT"):
        assert f'environ["{unread}"]' not in source
        assert f'get("{unread}")' not in source


def test_port_is_agreed_without_communication() -> None:
    shared = {"SLURM_JOB_ID": "99", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    from hangscope.toolkit.launching.master import master_port

    ports = {master_port(shared | {"SLURM_PROCID": str(rank)}) for rank in range(2)}
    assert len(ports) == 1


def test_device_is_set_before_the_process_group() -> None:
    source = inspect.getsource(hangscope.init_distributed)
    assert source.index("_set_device(world, wanted=backend)") < source.index("init_process_group(")


def test_values_never_become_a_shell_string(tmp_path: Path) -> None:
    """A value that tries to run a command is printed as a value, for sh and for docker."""
    trap = tmp_path / "trap"
    value = f"x; touch {trap}; $(touch {trap}) `touch {trap}`"
    for form in ("--sh", "--docker"):
        printed = subprocess.run(
            [sys.executable, "-m", "hangscope", "env", form, "--no-interfaces"],
            env=environment(NCCL_DEBUG=value, NCCL_PROTO=""),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "NCCL_PROTO" not in printed, "nothing empty is forwarded"
        script = printed if form == "--sh" else f"set -- {printed}"
        show = 'printf %s "$NCCL_DEBUG"' if form == "--sh" else "printf '%s\\n' \"$@\""
        done = subprocess.run(
            ["sh", "-c", f"{script}\n{show}"], capture_output=True, text=True, check=True
        )
        assert value in done.stdout
        assert not trap.exists()


def test_one_rank_looks_at_files_and_tells_the_others(tmp_path: Path) -> None:
    """Over a network file system ranks can disagree on whether a file is there."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "train.py").write_text("if rank == 0:\n    dist.barrier()\n")
    code = (
        "import os, sys; os.chdir(os.environ['PLACE']); sys.stderr = open(os.devnull, 'w')\n"
        "from hangscope.cli import main; main()"
    )
    places = [
        environment(**env, PLACE=str(folder))
        for env, folder in zip(worlds(2), (here, there), strict=True)
    ]
    command = [sys.executable, "-c", code, "doctor", "--json", "--script", "train.py"]
    job = run_each(command, places)
    assert job.returncode == 1
    found = [f["check"] for f in json.loads(job.output)["findings"] if f["level"] == "error"]
    assert found == ["guarded-collective"], "the rank without the file did not look for it"


def test_tests_restore_the_whole_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools can work on an environment of their own, so tests need not touch the real one."""
    from hangscope.toolkit.environments.environment import configure_environment
    from hangscope.toolkit.reductions.deterministic_env import configure_deterministic_nccl_env

    before = dict(os.environ)
    own: dict[str, str] = {}
    configure_environment(environ=own, found=[])
    configure_deterministic_nccl_env(environ=own)
    assert own
    assert dict(os.environ) == before
