"""The doctor on launches: D1 to D7, by command and by environment."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from hangscope.toolkit.doctor.command import environment_of, parse_command
from hangscope.toolkit.doctor.devices import (
    check_devices,
    check_fit,
    shared_devices,
)
from hangscope.toolkit.doctor.examine import check_files
from hangscope.toolkit.doctor.host import check_host, check_variables
from hangscope.toolkit.doctor.launch import check_launch, port_finding
from hangscope.toolkit.doctor.model import Device, Finding, Neighbour, Surroundings
from hangscope.toolkit.doctor.neighbours import check_neighbours
from hangscope.toolkit.doctor.surroundings import parse_devices
from hangscope.toolkit.doctor.timeouts import check_timeouts, timeout_rows
from hangscope.toolkit.environments.interfaces import Interface
from hangscope.toolkit.environments.variables import VARIABLES

GPUS = tuple(Device(i, "H100", 80 * 2**30) for i in range(4))
BARE = Surroundings(env={}, cwd="/nowhere", home="/nowhere")


def launch(command: str, *, devices: int = 4, **env: str) -> list[Finding]:
    return list(
        check_launch(replace(BARE, env=env, devices=GPUS[:devices], command=tuple(command.split())))
    )


def found(findings: list[Finding], playbook: str) -> list[str]:
    return [finding.check for finding in findings if finding.playbook == playbook]


def test_d1_plain_python_on_several_devices() -> None:
    assert found(launch("python train.py"), "D1") == ["no-launcher"]
    assert launch("python train.py", devices=1) == []


def test_d1_half_an_environment() -> None:
    findings = list(check_launch(replace(BARE, env={"RANK": "1"})))
    assert [f.playbook for f in findings] == ["D1"]
    assert "WORLD_SIZE" in findings[0].what


def test_d1_master_address_missing() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    findings = list(check_launch(replace(BARE, env=env)))
    assert found(findings, "D1") == ["master"]
    assert "MASTER_ADDR and MASTER_PORT" in findings[0].what


def test_d1_one_process_for_four_devices() -> None:
    assert found(launch("torchrun --standalone train.py"), "D1") == ["idle-devices"]


@pytest.mark.parametrize(
    ("command", "check"),
    [
        ("torchrun --nnodes=2 --standalone --nproc-per-node 4 t.py", "standalone"),
        ("torchrun --nnodes 2 --rdzv-id=7 --nproc-per-node 4 t.py", "no-endpoint"),
        (
            "torchrun --nnodes=2 --rdzv_id 7 --rdzv-endpoint=localhost:29400 --nproc_per_node 4 t",
            "localhost-master",
        ),
        (
            "torchrun --nnodes=1:4 --rdzv-endpoint=head:29400 --nproc-per-node 4 t.py",
            "no-rdzv-id",
        ),
        (
            "torchrun --nnodes=2 --master-addr=head --nproc-per-node 4 t.py",
            "no-node-rank",
        ),
        (
            "accelerate launch --num_machines 2 --num_processes 8 --multi_gpu t.py",
            "localhost-master",
        ),
    ],
)
def test_d2_nodes_that_cannot_find_each_other(command: str, check: str) -> None:
    assert found(launch(command), "D2") == [check]


def test_d2_right_multi_node_launch_is_clean() -> None:
    line = "torchrun --nnodes=2 --rdzv-id=7 --rdzv-backend=c10d --rdzv-endpoint=head:29400"
    assert launch(f"{line} --nproc-per-node=4 train.py --lr 1") == []
    assert launch(f"srun -N 2 {line} --nproc-per-node=4 train.py") == []


def test_d2_localhost_master_in_the_environment() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
    env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert found(list(check_launch(replace(BARE, env=env))), "D2") == ["localhost-master"]


def test_d3_more_processes_than_devices() -> None:
    assert found(launch("torchrun --standalone --nproc-per-node=8 t.py"), "D3") == [
        "too-many-processes"
    ]
    limited = launch("torchrun --standalone --nproc-per-node=4 t.py", CUDA_VISIBLE_DEVICES="0,1")
    assert found(limited, "D3") == ["too-many-processes"]


def test_d3_local_rank_without_a_device() -> None:
    env = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"}
    s = replace(BARE, devices=GPUS, env=env)
    assert [f.check for f in check_devices(s)] == ["local-rank"]
    one_each = replace(s, env=env | {"CUDA_VISIBLE_DEVICES": "3"})
    assert list(check_devices(one_each)) == []


def test_d3_device_listed_twice_or_absent() -> None:
    twice = replace(BARE, devices=GPUS, env={"CUDA_VISIBLE_DEVICES": "1,1"})
    assert [f.check for f in check_devices(twice)] == ["device-twice"]
    absent = replace(BARE, devices=GPUS, env={"CUDA_VISIBLE_DEVICES": "0,7"})
    assert [f.check for f in check_devices(absent)] == ["device-absent"]


def test_d3_two_ranks_on_one_device() -> None:
    same = {"host": "a", "devices": 4}
    ranks = {r: same | {"local_rank": r, "visible": ["0"]} for r in (0, 1)}
    findings = list(shared_devices(ranks))
    assert [(f.check, f.ranks) for f in findings] == [("shared-device", (0, 1))]
    apart = {r: same | {"local_rank": r, "visible": [str(r)]} for r in (0, 1)}
    assert list(shared_devices(apart)) == []
    hosts = {r: {"host": str(r), "devices": 4, "local_rank": 0, "visible": None} for r in (0, 1)}
    assert list(shared_devices(hosts)) == []


def test_d4_port_in_use() -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert [f.check for f in port_finding(str(port))] == ["port-in-use"]
        line = f"torchrun --nproc-per-node=4 --master-port={port} t.py"
        assert found(launch(line), "D4") == ["port-in-use"]
    assert list(port_finding(str(port))) == []
    for no_port in ("0", "65536", "70000", "-1", "x", ""):
        assert [f.check for f in port_finding(no_port)] == ["port"]
    assert "port" not in [f.check for last in ("1", "65535") for f in port_finding(last)]


def test_d4_only_a_port_that_this_node_will_open_is_tried() -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        one = "torchrun --nproc-per-node=4 "
        for line, said in {
            one + f"--rdzv-endpoint=localhost:{port} t.py": True,
            one + f"--rdzv-endpoint=localhost:0 --master-port={port} t.py": False,
            one + f"--standalone --master-port={port} t.py": False,
            f"deepspeed --num_gpus=4 --master_port={port} t.py": True,
            f"deepspeed --num_nodes=2 --num_gpus=4 --master_port={port} t.py": False,
        }.items():
            assert (found(launch(line), "D4") == ["port-in-use"]) is said, line


@pytest.mark.parametrize(
    ("own", "theirs", "shared"),
    [
        ("0,1", ["1,2", "2"], "device 1 as"),
        ("0,1", ["1", "0"], "device 0, 1 as"),
        ("0,1", ["2,3"], ""),
        ("0", [None], "device 0 as"),
        (None, [None], "device 0, 1, 2, 3 as"),
        (None, [""], ""),
        ("", [None], ""),
    ],
)
def test_d4_another_job_sees_the_same_devices(
    own: str | None, theirs: list[str | None], shared: str
) -> None:
    env = {} if own is None else {"CUDA_VISIBLE_DEVICES": own}
    ranks = tuple(Neighbour(7 + n, "MASTER_PORT=1", text) for n, text in enumerate(theirs))
    findings = list(check_neighbours(replace(BARE, devices=GPUS, env=env, neighbours=ranks)))
    assert [f.check for f in findings] == (["devices-overlap"] if shared else [])
    assert all(f"process 7, MASTER_PORT=1) sees {shared}" in f.what for f in findings)


def test_d5_accelerate_without_configuration(tmp_path: Path) -> None:
    assert found(launch("accelerate launch train.py"), "D5") == ["accelerate-one-process"]
    assert found(launch("accelerate launch --multi_gpu --num_processes=4 t.py"), "D5") == []
    assert found(launch("accelerate launch --num_processes=2 t.py"), "D5") == []
    for devices, levels in {0: ["warning"], 1: [], 2: ["error"]}.items():
        alone = launch("accelerate launch train.py", devices=devices)
        assert [f.level for f in alone if f.check == "accelerate-one-process"] == levels
    absent = launch("accelerate launch --config_file absent.yaml t.py")
    assert found(absent, "D5") == ["accelerate-config"]
    default = tmp_path / "accelerate/default_config.yaml"
    default.parent.mkdir()
    default.write_text("num_processes: 4\n")
    assert launch("accelerate launch t.py", HF_HOME=str(tmp_path)) == []


@pytest.mark.parametrize(
    ("command", "level"),
    [("sh launch.sh", "note"), ("A=1 no-such-launcher train.py", "warning")],
)
def test_unparsable_command_is_reported(command: str, level: str) -> None:
    findings = list(check_files(replace(BARE, command=tuple(command.split())), None, None))
    assert [(f.check, f.level) for f in findings] == [("command", level)]
    assert "only this host and its environment were checked" in findings[0].what


def test_d6_two_launchers_and_no_hostfile() -> None:
    both = launch("torchrun --standalone --nproc-per-node=4 --no-python deepspeed train.py")
    assert found(both, "D6") == ["two-launchers"]
    assert found(launch("deepspeed --hostfile absent --num_gpus 4 t.py"), "D6") == ["hostfile"]
    assert found(launch("deepspeed --num_nodes 2 t.py"), "D6") == ["hostfile"]
    under = launch("deepspeed --num_gpus=4 --master_port 1 t.py", TORCHELASTIC_RUN_ID="x")
    assert found(under, "D6") == ["two-launchers"]


@pytest.mark.parametrize(
    ("parameters", "world", "wrapper", "checks"),
    [
        (10**9, 8, "ddp", []),
        (7 * 10**9, 8, "ddp", ["does-not-fit"]),
        (7 * 10**9, 8, "fsdp", []),
        (7 * 10**9, 1, "fsdp", ["does-not-fit"]),
        (10**9, 8, "zero3", ["fits"]),
    ],
)
def test_d7_state_against_memory(
    parameters: int, world: int, wrapper: str, checks: list[str]
) -> None:
    findings = list(check_fit(parameters, 80 * 2**30, world, wrapper))
    assert [f.check for f in findings] == checks
    assert all(f.playbook == "D7" for f in findings)


def test_timeouts_are_one_table_with_the_effective_ones_marked() -> None:
    env = {"NCCL_TIMEOUT": "100", "TORCH_DIST_INIT_TIMEOUT": "150", "HANGSCOPE": "1"}
    rows = {row.name: row for row in timeout_rows(replace(BARE, env=env))}
    assert not rows["NCCL_TIMEOUT"].effective
    assert rows["NCCL_TIMEOUT"].value == "100"
    assert not rows["TORCH_DIST_INIT_TIMEOUT"].effective
    assert rows["HANGSCOPE_TIMEOUT"].effective
    assert rows["init_process_group(timeout=), NCCL"].effective
    assert {name for name in rows if name.isupper()} <= {v.name for v in VARIABLES if v.timeout}
    assert "NCCL_TIMEOUT" not in {row.name for row in timeout_rows(BARE)}, "nothing reads it"
    assert not {row.name: row for row in timeout_rows(BARE)}["HANGSCOPE_TIMEOUT"].effective
    advisory = timeout_rows(replace(BARE, env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}))
    assert not advisory[0].effective


def test_timeouts_that_defeat_one_another() -> None:
    late = {"HANGSCOPE": "1", "HANGSCOPE_TIMEOUT": "900"}
    assert [f.check for f in check_timeouts(replace(BARE, env=late))] == ["timeout-order"]
    for harmless in ({**late, "HANGSCOPE": "0"}, {**late, "HANGSCOPE_TIMEOUT": "599"}):
        assert list(check_timeouts(replace(BARE, env=harmless))) == []
    odd = {"HANGSCOPE_TIMEOUT": "soon"}
    assert [f.check for f in check_timeouts(replace(BARE, env=odd))] == ["timeout-value"]


def test_shared_memory_and_open_files() -> None:
    s = replace(BARE, devices=GPUS, shm_bytes=64 * 2**20, files_limit=256)
    assert [f.check for f in check_host(s)] == ["shared-memory", "open-files"]
    assert list(check_host(replace(s, shm_bytes=8 * 2**30, files_limit=65536))) == []


def test_variables_become_findings() -> None:
    eth = (Interface("eth0", "ethernet", True, True),)
    env = {"NCCL_SOCKET_IFNAME": "ib0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "HANGSCOPE": "1"}
    findings = list(check_variables(replace(BARE, env=env, interfaces=eth)))
    assert {f.level for f in findings} == {"error"}
    assert len(findings) == 2
    off = list(check_variables(BARE))
    assert [(f.check, f.level, f.playbook) for f in off] == [("recording-off", "note", "D19")]


def test_recording_in_python_is_a_note() -> None:
    recording = replace(BARE, env={"HANGSCOPE": "1"}, torch_version="2.13.0")
    assert list(check_variables(recording)) == []
    (found,) = check_variables(replace(recording, is_compiled=False))
    assert (found.check, found.level) == ("recording-uncompiled", "note")
    assert "hangscope compile" in found.fix


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("A=1 env B=x=y torchrun C=3", {"A": "1", "B": "x=y"}),
        ("torchrun --lr=3 A=1", {}),
        ("--x=1 A=1", {}),
        ("./a=b A=1", {}),
    ],
)
def test_assignments_in_front_of_a_command_are_its_environment(
    command: str, told: dict[str, str]
) -> None:
    assert environment_of(command.split()) == told


def test_devices_are_read_from_nvidia_smi() -> None:
    text = "0, NVIDIA H100 80GB HBM3, 81559\n1, NVIDIA H100 80GB HBM3, 81559\ngarbage\n"
    devices = parse_devices(text)
    assert [d.index for d in devices] == [0, 1]
    assert devices[0].memory_bytes == 81559 * 2**20


def test_commands_are_parsed() -> None:
    line = "A=1 python -m torch.distributed.run --nnodes=2 --standalone -m pkg.train --lr 3"
    command = parse_command(line.split())
    assert command is not None
    assert command.launcher == "torchrun"
    assert command.options["nnodes"] == "2"
    nested = parse_command(["srun", "-N", "2", "torchrun", "--nproc_per_node", "8", "a.py", "--x"])
    assert nested is not None
    assert nested.inner is not None
    assert nested.inner.options == {"nproc-per-node": "8"}
    assert nested.inner.script == "a.py"
    module = parse_command(
        ["python3", "-m", "accelerate.commands.launch", "--num_machines=2", "t.py"]
    )
    assert module is not None
    assert (module.launcher, module.options["num-machines"]) == ("accelerate", "2")
    program = parse_command(["python3", "-u", "-m", "pkg.train", "--rank", "3"])
    assert program is not None
    assert program.launcher == "python"
    assert parse_command(["ls"]) is None
    assert parse_command([]) is None
