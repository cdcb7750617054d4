"""Pids and local ranks are valid on one machine only."""

from __future__ import annotations

import os

import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace.job_log.evidence.processes import ProcessRanks
from hangscope.trace.job_log.lines.line import UNKNOWN_MACHINE, Machine
from hangscope.trace.job_log.read import read_job_log
from hangscope.trace.merging.merge import merge

from .logs import timeout, trace_of

MASTER, WORKER = "[pod/job-master-0/main] ", "[pod/job-worker-0/main] "
RAISED = [
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 9, in <module>',
    "    main()",
    '  File "/app/train.py", line 5, in main',
    '    raise ValueError("bad sample")',
    "ValueError: bad sample",
]
SERVES = "[W816 11:00:00.100000001 socket.cpp:464] [c10d] the server socket timed out"
AGENT = "0816 11:20:00.000000 {} torch/distributed/elastic/multiprocessing/api.py:869] "


def failed(local: int, code: int = 1, pid: int = 77, agent: int = 1) -> str:
    said = f"failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary: /bin/py"
    return f"E{AGENT.format(agent)}{said}"


def answer(*lines: str) -> tuple[str, tuple[int, ...], str]:
    found = diagnose(trace_of("\n".join(lines) + "\n"))
    return found.verdict.value, found.culprits, found.confidence.value


@pytest.mark.parametrize("local", [0, 1])
@pytest.mark.parametrize("head", ["(Worker pid=83{}) ", "(Worker pid=83{}, ip=10.0.0.1) "])
def test_process_of_another_node_may_have_the_same_pid(local: int, head: str) -> None:
    """In containers all of them do; the rank that was mentioned was reported as crashed and
    certain."""
    heard = [head.format(rank) + f"[rank{rank}]:{SERVES}" for rank in range(2)]
    other = f"(Worker pid=83{local}, ip=10.0.0.2) "
    verdict, culprits, _ = answer(*heard, *(other + line for line in RAISED))
    assert (verdict, culprits) == ("inconclusive", ())
    known = other + f"[rank{local + 2}]:{SERVES}"
    verdict, culprits, _ = answer(*heard, known, *(other + line for line in RAISED))
    assert (verdict, culprits) == ("rank_crashed", (local + 2,))


def test_local_rank_of_another_pod_is_another_rank() -> None:
    heard = [f"{MASTER}[default{rank}]:[rank{rank}]:{SERVES}" for rank in range(2)]
    raised = [WORKER + "[default0]:" + line for line in RAISED]
    assert answer(*heard, *raised, WORKER + failed(0))[1] == ()
    neighbour = f"{WORKER}[default1]:[rank3]:{SERVES}"
    assert answer(*heard, neighbour, WORKER + failed(0, -9))[:2] == ("rank_crashed", (2,))


def test_same_pid_on_two_pods() -> None:
    heard = [f"{MASTER}[default0]:[rank0]:{SERVES}", f"{WORKER}[default0]:[rank2]:{SERVES}"]
    told = [f"{pod}[{i}]:{SERVES}" for i, pod in ((0, MASTER), (2, WORKER))]
    assert answer(*heard, *told, WORKER + failed(0, -9))[:2] == ("rank_crashed", (2,))


@pytest.mark.parametrize(
    "head",
    [
        "+ torchrun --nnodes=2 --node-rank=1 --nproc-per-node=2 train.py",
        "+ torchrun --nproc_per_node 2 --nnodes 2 --node_rank 1 train.py",
        "[INFO] [launch.py:152:main] nnodes=2, num_local_procs=2, node_rank=1",
    ],
)
def test_command_shows_the_node_rank(head: str) -> None:
    assert answer(head, *RAISED, failed(1)) == ("rank_crashed", (3,), "likely")


@pytest.mark.parametrize(
    "head",
    [
        "+ torchrun --nnodes=2 --nproc-per-node=2 --rdzv-endpoint=a:1 train.py",
        "+ torchrun --nnodes=1:2 --node-rank=1 --nproc-per-node=2 --rdzv-backend=c10d train.py",
        "+ accelerate launch --num_machines 2 --machine_rank 1 --num_processes 4 train.py",
        "trainer.num_nodes=4",
    ],
)
def test_several_nodes_leave_the_node_undecided(head: str) -> None:
    assert answer(head, *RAISED, failed(1))[1] == ()


def test_single_node_is_known() -> None:
    assert answer("+ torchrun --nnodes=1 train.py", *RAISED, failed(1))[1] == (1,)
    first = "+ torchrun --nnodes=2 --node-rank=0 --nproc-per-node=2 train.py"
    assert answer(first, *RAISED, failed(1)) == ("rank_crashed", (1,), "likely")


def agents(first: int) -> list[str]:
    lists = ["group_world_size=2", "local_ranks=[0, 1]", "role_ranks=[0, 1]"]
    return [*lists, f"global_ranks=[{first}, {first + 1}]"]


def test_agent_lists_the_ranks_of_its_node() -> None:
    assert answer(*agents(2), failed(1, -9))[:2] == ("rank_crashed", (3,))
    assert answer(*agents(0), *agents(2), failed(1, -9))[1] == ()  # two that nothing tells apart


def test_deepspeed_lists_the_ranks_of_all_hosts() -> None:
    mapping = "global_rank_mapping=defaultdict(<class 'list'>, {'a': [0, 1, 2], 'b': [3]})"
    said = ["nnodes=2, num_local_procs=1, node_rank=1", mapping]
    ended = "['/bin/py', '-u', 't.py', '--local_rank=0'] exits with return code = -9"
    assert answer(*said, ended)[:2] == ("rank_crashed", (3,))


@pytest.mark.parametrize("code", [1, -9])
def test_unmentioned_rank_that_exited_is_an_additional_one(code: int) -> None:
    """Two ranks that waited for it were taken for all ranks, and the network was blamed."""
    waits = "".join(timeout(rank, 7) for rank in (0, 1)).splitlines()
    found = diagnose(trace_of("\n".join([failed(0, code), *waits, failed(0, -6, 78, agent=2)])))
    assert found.verdict.value == "inconclusive"
    assert "local rank 0" in found.findings[0].fix
    alone = diagnose(trace_of("\n".join([*waits, failed(0, -6, 78, agent=2)])))
    assert alone.verdict.value == "stuck_collective"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (Machine("10.0.0.1"), Machine("10.0.0.2"), False),
        (Machine("10.0.0.1"), Machine("node1"), True),
        (Machine(""), Machine("10.0.0.2"), False),
        (Machine("node1"), Machine("node1.cluster"), True),
        (Machine("node1"), Machine("node10"), False),
        (Machine("node1", 0), Machine("node1", 1), False),
        (UNKNOWN_MACHINE, Machine("node1", 1), True),
    ],
)
def test_whether_two_names_may_be_one_machine(one: Machine, other: Machine, *, alike: bool) -> None:
    assert one.may_be(other) is other.may_be(one) is alike


def test_process_forwarding_lines_of_several_ranks_is_none_of_them() -> None:
    processes = ProcessRanks()
    for rank in (4, 5):
        processes.wrote(rank, UNKNOWN_MACHINE, 77, None)
    assert processes.of_pid(77, UNKNOWN_MACHINE) is None


def test_pod_that_only_prints_its_steps_is_another_node() -> None:
    steps = [f"{pod}step {i}" for i in range(30) for pod in (MASTER, WORKER)]
    ended = "[rank: 0] Child process with PID 77 terminated with code 1. Forcefully terminating"
    assert answer(*steps, WORKER + ended)[1] == ()
    assert answer(*steps[1::2], WORKER + ended)[1] == (0,)


def test_command_counts_for_restarts_as_well() -> None:
    command = "+ torchrun --nnodes=2 --node-rank=1 --nproc-per-node=2 train.py"
    anew = "Worker group FAILED. 1/3 attempts left; will restart worker group"
    assert answer(command, *RAISED, failed(1), anew, *RAISED, failed(0))[:2] == (
        "rank_crashed",
        (2,),
    )


def test_numbers_printed_as_ranks_by_two_machines_are_local_ranks() -> None:
    """The second process of the second node was reported as rank 1, certain."""
    steps = [f"[node{n}][rank{r}] step {i}" for i in range(6) for n in (0, 1) for r in (0, 1)]
    assert answer(*steps, *("[node1][rank1] " + line for line in RAISED))[:2] == (
        "inconclusive",
        (),
    )
    alone = [line for line in steps if line.startswith("[node1]")]
    assert answer(*alone, *("[node1][rank1] " + line for line in RAISED))[1] == (1,)


def test_ray_train_lists_the_ranks_of_its_workers() -> None:
    listed = [
        f"(TorchTrainer pid=7) - (node_id=ab{h}, ip=10.0.0.{h}, pid={80 + r}) "
        f"world_rank={2 * h + r}, local_rank={r}, node_rank={h}"
        for h in (0, 1)
        for r in (0, 1)
    ]
    raised = ["(RayTrainWorker pid=81, ip=10.0.0.1) " + line for line in RAISED]
    assert answer(*listed, *raised)[:2] == ("rank_crashed", (3,))
    assert answer(*raised)[:2] == ("inconclusive", ())


@pytest.mark.parametrize(("xid", "failed"), [(79, True), (31, True), (45, False), (43, False)])
def test_cleanup_by_a_driver_is_no_failure(xid: int, *, failed: bool) -> None:
    comm = (
        "node1:{0}:9 [0] NCCL INFO comm 0x55d0 rank {1} nranks 4 cudaDev 0 busId 1 - Init COMPLETE"
    )
    ranks = [comm.format(500 + rank, rank) for rank in range(4)]
    waits = "".join(timeout(rank, 7) for rank in range(3)).splitlines()
    line = f"NVRM: Xid (PCI:0000:44:00): {xid}, pid=503, name=python, Ch 00000008"
    verdict, culprits, _ = answer(*ranks, line, *waits)
    assert (verdict, culprits) == ("rank_crashed" if failed else "missing_rank", (3,))


STEPS = [f"step {i} loss 2.{i}" for i in range(8)]


def closing(agent: int, pid: int, at: str) -> str:
    where = f"{agent} torch/distributed/elastic/multiprocessing/api.py:897] "
    return f"W0816 {at}.000000 {where}Sending process {pid} closing signal SIGTERM"


@pytest.mark.parametrize(("agent", "at"), [(7, "11:19:59"), (1, "11:20:40")])
def test_concatenated_logs_of_two_nodes(agent: int, at: str) -> None:
    """Two agents, or one whose time goes back: what failed there was reported as rank 0."""
    first = [*STEPS, closing(agent, 70, at), closing(agent, 71, at)]
    assert answer(*first, *STEPS, failed(0), closing(1, 91, "11:20:00"))[:2] == ("inconclusive", ())
    assert answer(*STEPS, failed(0), closing(1, 91, "11:20:00"))[1] == (0,)


def init(pid: int, rank: int, size: int, device: int, comm: str) -> str:
    return (
        f"node1:{pid}:9 [{device}] NCCL INFO ncclCommInitRank comm 0x{comm}{rank:04x} rank {rank} "
        f"nranks {size} cudaDev {device} busId {device + 1}000 commId 0x{comm} - Init COMPLETE"
    )


PAIRS = [init(500 + i, i % 2, 2, i, f"{i // 2}aaa") for i in range(4)]
WORLD = [init(500 + i, i, 4, i, "3bbb") for i in range(4)]
FAILED = (
    "node1:502:9 [2] a.cc:1 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'"
)
KILLED = "Out of memory: Killed process 502 (python) total-vm:8kB"


@pytest.mark.parametrize("said", [FAILED, KILLED])
def test_place_in_a_pair_of_ranks_is_no_rank(said: str) -> None:
    """The first of the second pair was reported as rank 0."""
    assert answer(*PAIRS, *STEPS, said)[:2] == ("inconclusive", ())
    for known in ([*PAIRS, *WORLD], [*WORLD, *PAIRS]):
        assert answer(*known, *STEPS, said)[:2] == ("rank_crashed", (2,))


@pytest.mark.parametrize("tag", ["[1,{}]<stderr>:", "[{}] "])
def test_mpi_launcher_tag_is_a_node_if_it_starts_torchrun(tag: str) -> None:
    steps = [tag.format(task) + step for step in STEPS for task in (0, 1)]
    raised = [tag.format(1) + line for line in RAISED]
    assert answer(*steps, *raised)[:2] == ("rank_crashed", (1,))
    assert answer(*steps, *raised, tag.format(1) + failed(0))[:2] == ("inconclusive", ())
    inner = [tag.format(1) + f"[rank8]: {step}" for step in STEPS]
    assert answer(*steps, *inner, *raised)[:2] == ("inconclusive", ())


def test_skypilot_node_is_no_rank() -> None:
    steps = [f"(worker{i}, rank={i}, pid=9{i}, ip=10.0.0.{i}) {s}" for s in STEPS for i in (0, 1)]
    raised = ["(worker1, rank=1, pid=91, ip=10.0.0.1) " + line for line in RAISED]
    assert answer(*steps, *raised)[:2] == ("inconclusive", ())


def test_log_from_a_pipe_is_reread_as_well() -> None:
    lines = [f"[node{n}][rank1] {step}" for step in STEPS for n in (0, 1)]
    text = "\n".join([*lines, *("[node1][rank1] " + line for line in RAISED)]) + "\n"
    read_end, write_end = os.pipe()
    os.write(write_end, text.encode())
    os.close(write_end)
    with open(read_end, "rb") as stream:
        trace = merge(read_job_log(stream, path="-"))
    assert not diagnose(trace).culprits
    assert any("bad sample" in claim.text for claim in trace.claims)
