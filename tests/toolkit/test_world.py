"""Ranks, addresses, ports and meshes, from the environment alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangscope.toolkit.launching.hostlist import expand_hostlist
from hangscope.toolkit.launching.master import PORTS, master_address, master_port
from hangscope.toolkit.launching.mesh import resolve_mesh
from hangscope.toolkit.launching.world import WorldInfo, export_world, get_world_info

TORCHRUN = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "6",
    "SLURM_TASKS_PER_NODE": "4,2",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "gpu[03-04]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-n0-77@1",
}


@pytest.mark.parametrize(
    ("env", "expected", "launcher"),
    [
        ({}, WorldInfo(0, 0, 1, 1), "none"),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "x"}, WorldInfo(9, 1, 16, 8), "torchrun"),
        (SLURM, WorldInfo(5, 1, 6, 2), "slurm"),
        (OPEN_MPI, WorldInfo(3, 1, 8, 2), "openmpi"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, WorldInfo(1, 1, 2, 2), "environment"),
        ({"WORLD_SIZE": "1"}, WorldInfo(0, 0, 1, 1), "none"),
        (SLURM | {"WORLD_SIZE": "6"}, WorldInfo(5, 1, 6, 2), "slurm"),
    ],
)
def test_place_in_the_world_is_read_from_any_launcher(
    env: dict[str, str], expected: WorldInfo, launcher: str
) -> None:
    info = get_world_info(env)
    assert info == expected
    assert info.launcher == launcher


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"RANK": "1"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "4"}, "RANK"),
        ({"RANK": "four", "WORLD_SIZE": "8"}, "RANK='four'"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, "RANK=8"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        (TORCHRUN | {"LOCAL_RANK": "8"}, "LOCAL_RANK=8"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "99"}, "LOCAL_WORLD_SIZE=99"),
    ],
)
def test_impossible_environments_name_the_variable(env: dict[str, str], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        get_world_info(env)


def test_reading_changes_nothing_and_exporting_fills_gaps_only() -> None:
    env = dict(SLURM)
    info = get_world_info(env)
    assert env == SLURM
    env["RANK"] = "5"
    export_world(info, env)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("5", "6", "1")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-02,10],login", ["n01", "n02", "n10", "login"]),
        ("r[1-2]c[1-2]", ["r1c1", "r1c2", "r2c1", "r2c2"]),
        ("a-b[3]-ib", ["a-b3-ib"]),
        ("", []),
    ],
)
def test_host_list_is_expanded_in_order(text: str, hosts: list[str]) -> None:
    assert expand_hostlist(text) == hosts


@pytest.mark.parametrize("text", ["n[1", "n1]", "n[a-b]", "n[5-2]", "n[[1]]"])
def test_unreadable_hostlists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host list"):
        expand_hostlist(text)


def test_address_is_the_first_host_of_the_slurm_job() -> None:
    assert master_address(SLURM, 6, 2) == "gpu03"
    assert master_address(SLURM | {"MASTER_ADDR": "other"}, 6, 2) == "other"
    step = {"SLURM_STEP_NODELIST": "gpu[07-08]"}
    assert master_address(SLURM | step, 6, 2) == "gpu07", "a step may have some of the job's hosts"
    by_mpirun = SLURM | step | {"OMPI_COMM_WORLD_RANK": "1"}
    assert master_address(by_mpirun, 6, 2) == "gpu03", "its step is one of mpirun's daemons"
    assert master_address({}, 4, 4) == "127.0.0.1"
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        master_address({}, 8, 4)


def test_port_is_derived_from_the_job_so_all_ranks_agree() -> None:
    port = master_port(SLURM)
    assert port == master_port(SLURM | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert port in PORTS
    assert port != master_port(SLURM | {"SLURM_JOB_ID": "4712"})
    assert port != master_port(SLURM | {"SLURM_STEP_ID": "1"})
    assert master_port(OPEN_MPI) in PORTS
    assert master_port({"MASTER_PORT": "29501"}) == 29501


def test_port_is_never_guessed_by_each_rank_for_itself() -> None:
    with pytest.raises(ValueError, match="MASTER_PORT"):
        master_port({})
    with pytest.raises(ValueError, match="not a port"):
        master_port({"MASTER_PORT": "http"})


@pytest.mark.parametrize(
    ("mesh", "world", "expected"),
    [
        ({}, 8, {"dp_shard": 8}),
        ({"tp": 2}, 8, {"dp_shard": 4, "tp": 2}),
        ({"tp": 2, "pp": 2}, 8, {"pp": 2, "dp_shard": 2, "tp": 2}),
        ({"tp": 4, "dp_replicate": -1}, 8, {"dp_replicate": 2, "tp": 4}),
        ({"tp": 8}, 8, {"dp_shard": 1, "tp": 8}),
        ({"ep": 2, "dp_shard": 2, "dp_replicate": 2}, 8, None),
        ({"dp_replicate": 1, "dp_shard": -1}, 2, {"dp_replicate": 1, "dp_shard": 2}),
        ({"pp": 8}, 8, {"pp": 8}),
    ],
)
def test_open_mesh_size_follows_from_the_world(
    mesh: dict[str, int], world: int, expected: dict[str, int] | None
) -> None:
    got = resolve_mesh(mesh, world)
    assert got == (expected or {"dp_replicate": 2, "dp_shard": 2, "ep": 2})
    assert list(got) == [n for n in ("pp", "dp_replicate", "dp_shard", "ep", "tp") if n in got]


@pytest.mark.parametrize(
    "mesh",
    [{"tp": 3}, {"zz": 2}, {"tp": 0}, {"tp": -1, "pp": -1}, {"dp_shard": 4}, {"tp": True}],
)
def test_impossible_meshes_are_refused(mesh: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="mesh"):
        resolve_mesh(mesh, 8)


@given(
    st.dictionaries(
        st.sampled_from(["pp", "dp_replicate", "dp_shard", "ep", "tp"]), st.integers(1, 4)
    ),
    st.integers(1, 3),
)
def test_any_mesh_that_is_accepted_covers_the_world(sizes: dict[str, int], factor: int) -> None:
    world = factor
    for size in sizes.values():
        world *= size
    try:
        got = resolve_mesh(sizes, world)
    except ValueError:
        assert "dp_shard" in sizes
        assert factor > 1
        return
    product = 1
    for size in got.values():
        product *= size
    assert product == world
    assert all(got[name] == size for name, size in sizes.items())
