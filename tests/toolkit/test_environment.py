"""The environment: variables set and kept, problems found, output."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from rich.console import Console

from hangscope.toolkit.environments.environment import (
    as_shell,
    configure_environment,
    docker_arguments,
    parse_version,
    recommended,
)
from hangscope.toolkit.environments.interfaces import (
    Interface,
    pick_fast,
    read_interfaces,
    unknown_names,
)
from hangscope.toolkit.environments.rules import find_problems
from tests.real_jobs import environment

ETH = Interface("eth0", "ethernet", True, True, 1000)
IB = Interface("ib0", "infiniband", True, True, 200_000)
ROCE = Interface("enp49s0f0np0", "roce", True, True, 400_000)
ASYNC = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def configure(env: dict[str, str], version: str = "2.13.0", **options: object):  # type: ignore[no-untyped-def]
    return configure_environment(
        environ=env,
        torch_version=version,
        found=options.pop("found", [ETH]),  # type: ignore[arg-type]
        warn=False,
        **options,  # type: ignore[arg-type]
    )


def test_names_are_those_this_torch_version_reads() -> None:
    new: dict[str, str] = {}
    configure(new, "2.13.0")
    assert new[ASYNC] == "3"
    assert new["TORCH_FR_BUFFER_SIZE"] == "2000"
    middle: dict[str, str] = {}
    configure(middle, "2.5.1")
    assert middle["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert "TORCH_FR_BUFFER_SIZE" not in middle
    old: dict[str, str] = {}
    configure(old, "2.1.0")
    assert old["NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert ASYNC not in old


def test_report_lists_variables_set_kept_and_conflicting() -> None:
    report = configure({ASYNC: "9", "NCCL_SOCKET_IFNAME": "eth0"})
    assert ASYNC in report.kept
    assert ASYNC not in report.set
    assert "TORCH_FR_BUFFER_SIZE" in report.set
    assert ASYNC in [problem.variable for problem in report.conflicts]
    assert {problem.kind for problem in report.conflicts} == {"conflict"}


def test_user_settings_are_kept_unless_overwritten() -> None:
    env = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "99"}
    report = configure(env)
    assert env["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "99"
    assert report.kept == {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "99"}
    configure(env, overwrite=True)
    assert env["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "480"


def test_deprecated_name_set_by_the_user_is_kept() -> None:
    env = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "50"}
    report = configure(env)
    assert "TORCH_FR_BUFFER_SIZE" not in env
    assert [p.kind for p in report.problems] == ["renamed"]


def test_table_shows_the_origin_and_reader_of_each_variable() -> None:
    env = {ASYNC: "1", "TORCHELASTIC_RUN_ID": "r", "NCCL_TIMEOUT": "100"}
    report = configure(env)
    rows = {s.variable: s for s in report.settings}
    assert rows[ASYNC].set_by == "torchrun"
    assert rows["NCCL_TIMEOUT"].set_by == "user"
    assert rows["NCCL_TIMEOUT"].read_by == "nothing"
    assert rows["TORCH_NCCL_DUMP_ON_TIMEOUT"].set_by == "hangscope"
    assert all(row.effect for row in rows.values())
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report.table())
    assert "read by" in console.export_text()


@pytest.mark.parametrize(
    ("env", "variable", "kind", "level"),
    [
        ({ASYNC: "0"}, ASYNC, "dangerous", "error"),
        ({ASYNC: "1", "HANGSCOPE": "1"}, ASYNC, "dangerous", "warning"),
        ({ASYNC: "9"}, ASYNC, "conflict", "error"),
        ({"NCCL_TIMEOUT": "1"}, "NCCL_TIMEOUT", "unread", "warning"),
        ({"NCCL_TIMEOUT_MS": "1"}, "NCCL_TIMEOUT_MS", "unread", "warning"),
        ({"TORCH_DIST_INIT_TIMEOUT": "1"}, "TORCH_DIST_INIT_TIMEOUT", "unread", "warning"),
        (
            {"TORCH_NCCL_BLOCKING_WAIT": "1", ASYNC: "3"},
            "TORCH_NCCL_BLOCKING_WAIT",
            "conflict",
            "warning",
        ),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, "TORCH_FR_BUFFER_SIZE", "conflict", "warning"),
        ({"TORCH_NCCL_DESYNC_DEBUG": "1"}, "TORCH_NCCL_DESYNC_DEBUG", "dangerous", "warning"),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "TORCH_DISTRIBUTED_DEBUG", "advice", "warning"),
        (
            {"TORCH_FR_BUFFER_SIZE": "9", "TORCH_NCCL_TRACE_BUFFER_SIZE": "8"},
            "TORCH_FR_BUFFER_SIZE",
            "conflict",
            "error",
        ),
        ({"NCCL_SOCKET_IFNAME": "ib7"}, "NCCL_SOCKET_IFNAME", "conflict", "error"),
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE", "conflict", "warning"),
        (
            {"NCCL_MIN_NCHANNELS": "4", "NCCL_MAX_NCHANNELS": "1"},
            "NCCL_MIN_NCHANNELS",
            "conflict",
            "error",
        ),
    ],
)
def test_problem_variable_is_found_with_its_level_and_a_fix(
    env: dict[str, str], variable: str, kind: str, level: str
) -> None:
    problems = find_problems(env, (2, 13), [ETH, IB])
    assert [(p.variable, p.kind, p.level) for p in problems] == [(variable, kind, level)]
    assert problems[0].fix


def test_torchruns_choice_is_fine_without_recording() -> None:
    assert find_problems({ASYNC: "1"}, (2, 13), [ETH]) == []


def test_problems_become_warnings() -> None:
    with pytest.warns(RuntimeWarning, match="nothing in PyTorch or NCCL reads it"):
        configure_environment(environ={"NCCL_TIMEOUT": "5"}, found=[ETH])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configure_environment(environ={}, found=[ETH])


def test_configuring_twice_changes_nothing() -> None:
    env: dict[str, str] = {}
    configure(env, found=[ETH, IB])
    once = dict(env)
    assert configure(env, found=[ETH, IB]).set == {}
    assert env == once


def test_fast_interface_is_used_for_both_backends() -> None:
    env: dict[str, str] = {}
    configure(env, found=[ETH, IB, ROCE])
    assert env["NCCL_SOCKET_IFNAME"] == env["GLOO_SOCKET_IFNAME"] == "enp49s0f0np0"
    assert configure({}, found=[ETH]).set.get("NCCL_SOCKET_IFNAME") is None
    down = Interface("ib0", "infiniband", False, True)
    no_address = Interface("ib1", "infiniband", True, False)
    assert pick_fast([down, no_address, ETH]) is None


def fake_sysfs(root: Path) -> Path:
    """One Ethernet card, one InfiniBand port, one RoCE card, the loopback."""
    for name, kind, state in (
        ("lo", "772", "unknown"),
        ("eth0", "1", "up"),
        ("ib0", "32", "up"),
        ("enp49s0f0np0", "1", "up"),
    ):
        card = root / "class/net" / name
        card.mkdir(parents=True)
        (card / "type").write_text(f"{kind}\n")
        (card / "operstate").write_text(f"{state}\n")
        (card / "speed").write_text("100000\n" if name != "lo" else "")
    for device, layer, name in (
        ("mlx5_0", "InfiniBand", "ib0"),
        ("mlx5_1", "Ethernet", "enp49s0f0np0"),
    ):
        port = root / "class/infiniband" / device / "ports/1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
        (root / "class/infiniband" / device / "device/net" / name).mkdir(parents=True)
    return root


def test_infiniband_and_roce_are_recognised(tmp_path: Path) -> None:
    found = read_interfaces(fake_sysfs(tmp_path), with_ipv4={"eth0", "ib0", "enp49s0f0np0", "lo"})
    assert {i.name: i.kind for i in found} == {
        "lo": "loop",
        "eth0": "ethernet",
        "ib0": "infiniband",
        "enp49s0f0np0": "roce",
    }
    best = pick_fast(found)
    assert best is not None
    assert best.name == "ib0", "at equal rates InfiniBand, the same on every host"
    assert read_interfaces(tmp_path / "absent", with_ipv4=set()) == []


def test_interface_patterns_of_nccl() -> None:
    assert unknown_names("eth", [ETH]) == []
    assert unknown_names("=eth", [ETH]) == ["eth"]
    assert unknown_names("^docker", [ETH]) == []
    assert unknown_names("eth0,ib0", [ETH]) == ["ib0"]


def test_unknown_torch_version_counts_as_the_newest() -> None:
    assert parse_version("2.8.0+cu126") == (2, 8)
    assert parse_version("") > (2, 99)
    assert "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC" in recommended((2, 13))


# --- printing: never a shell string out of values, nothing empty ---------------------------------

NASTY = {
    "NCCL_SOCKET_IFNAME": "eth0,fenic0",
    "A": "two words; rm -rf / $(touch /tmp/x) `id` 'q' \"d\"",
    "EMPTY": "",
}


def test_shell_output_survives_a_shell() -> None:
    script = as_shell(NASTY) + 'printf \'%s\\0\' "$A" "$NCCL_SOCKET_IFNAME"\n'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:2] == [NASTY["A"], NASTY["NCCL_SOCKET_IFNAME"]]
    assert "EMPTY" not in script


def test_docker_output_is_an_argument_list_with_nothing_empty() -> None:
    arguments = docker_arguments(NASTY)
    assert arguments[0::2] == ["-e", "-e"]
    assert arguments[1::2] == ["NCCL_SOCKET_IFNAME=eth0,fenic0", f"A={NASTY['A']}"]
    with pytest.raises(ValueError, match="not the name"):
        docker_arguments({"A B": "1"})


def env_command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hangscope", "env", *arguments],
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_env_command_for_sh_docker_and_json() -> None:
    nasty = NASTY["A"]
    shell = env_command("--no-interfaces", NCCL_SOCKET_IFNAME=nasty)
    assert shell.returncode == 0, shell.stderr
    assert f"export {ASYNC}=3" in shell.stdout
    assert f"export NCCL_SOCKET_IFNAME={shlex.quote(nasty)}" in shell.stdout
    docker = env_command("--docker", "--no-interfaces", NCCL_SOCKET_IFNAME=nasty)
    assert f"NCCL_SOCKET_IFNAME={nasty}" in shlex.split(docker.stdout)
    report = json.loads(env_command("--format", "json", "--torch", "2.5.0").stdout)
    assert report["set"]["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert env_command("--format", "toml").returncode == 2


def test_env_command_prints_nothing_dangerous_and_nothing_unread() -> None:
    done = env_command("--sh", "--no-interfaces", **{ASYNC: "0", "NCCL_TIMEOUT": "5"})
    assert f"export {ASYNC}=3" in done.stdout
    assert "NCCL_TIMEOUT=5" not in done.stdout
    assert "hangs for ever" in done.stderr
    assert "reads it" in done.stderr
