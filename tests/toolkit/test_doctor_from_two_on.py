"""What the doctor says of several devices, processes or networks, it says from two on."""

from __future__ import annotations

import pytest

from hangscope.toolkit.doctor.launch import check_launch
from hangscope.toolkit.doctor.model import Device, Surroundings

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
def test_who_is_alone_meets_nobody_at_an_address(world: str, said: list[str]) -> None:
    assert checks(WORLD_SIZE=world, **ONE) == said
