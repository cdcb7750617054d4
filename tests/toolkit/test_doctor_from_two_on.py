"""Findings about several devices, processes or networks begin at two."""

from __future__ import annotations

import pytest

from hangscope.toolkit.doctor.launch import check_launch
from hangscope.toolkit.doctor.model import Device, Surroundings
from hangscope.toolkit.environments.interfaces import Interface

ONE = {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def checks(command: str = "", *, devices: int = 0, **env: str) -> list[str]:
    gpus = tuple(Device(i, "H100", 80 * 2**30) for i in range(devices))
    words = tuple(command.split())
    around = Surroundings(env=env, cwd="/nowhere", home="/nowhere", devices=gpus, command=words)
    return [finding.check for finding in check_launch(around)]


@pytest.mark.parametrize(("devices", "said"), [(1, []), (2, ["no-launcher"])])
def test_without_a_launcher_the_other_devices_are_idle(devices: int, said: list[str]) -> None:
    assert checks(devices=devices) == said
    assert checks("python train.py", devices=devices) == said


@pytest.mark.parametrize(("devices", "said"), [(1, []), (2, ["idle-devices"])])
def test_one_process_leaves_the_other_devices_idle(devices: int, said: list[str]) -> None:
    command = "torchrun --standalone --nproc-per-node=1 train.py"
    assert checks(command, devices=devices) == said


@pytest.mark.parametrize(("world", "said"), [("1", []), ("2", ["master"])])
def test_single_node_needs_no_reachable_address(world: str, said: list[str]) -> None:
    assert checks(WORLD_SIZE=world, **ONE) == said


ETH, OTHER = (Interface(name, "ethernet", up=True, has_ipv4=True) for name in ("eth0", "eth1"))
LOOP = Interface("lo", "loop", up=True, has_ipv4=True)
DOWN = Interface("eth2", "ethernet", up=False, has_ipv4=True)
TWO_NODES = (
    "torchrun --nnodes=2 --rdzv-id=7 --rdzv-backend=c10d --rdzv-endpoint=head:29400 "
    "--nproc-per-node=1 t.py"
)


@pytest.mark.parametrize(
    ("interfaces", "env", "command", "said"),
    [
        ((ETH, OTHER), {}, TWO_NODES, True),
        ((ETH, LOOP, DOWN), {}, TWO_NODES, False),
        ((ETH, OTHER), {"NCCL_SOCKET_IFNAME": "eth0"}, TWO_NODES, False),
        ((ETH, OTHER), {}, "torchrun --standalone --nproc-per-node=1 t.py", False),
    ],
)
def test_nodes_may_meet_on_different_networks(
    interfaces: tuple[Interface, ...], env: dict[str, str], command: str, said: bool
) -> None:
    around = Surroundings(
        env=env,
        cwd="/nowhere",
        home="/nowhere",
        devices=(),
        command=tuple(command.split()),
        interfaces=interfaces,
    )
    assert ("interface" in [finding.check for finding in check_launch(around)]) is said


def test_the_other_nodes_are_looked_for_where_they_can_be_reached() -> None:
    line = "accelerate launch --num_machines 2 --num_processes 8 --multi_gpu "
    assert "localhost-master" in checks(line + "t.py")
    assert "localhost-master" in checks(line + "--main_process_ip localhost t.py")
    assert "localhost-master" not in checks(line + "--main_process_ip head t.py")
