"""The pretended NCCL in real processes, without torch, beside what NCCL did on a device."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pretend_gpu.patterns import Pattern, patterns
from tools.pretend_gpu.build import HERE, OURS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
    pytest.mark.xdist_group("pretended NCCL"),
]
HERE_TOO = Path(__file__).parent
RECORDED: dict[str, dict[str, dict[str, list[str]]]] = json.loads(
    (HERE_TOO / "recorded.json").read_text("utf-8")
)
END_S = 30.0
HANG_S = 0.7
"""Rest after which what has not ended is held to hang."""
COMPILER = ("g++", "-std=c++17", "-O1", f"-I{HERE_TOO}", f"-I{HERE}", "-DNCCL_VERSION_CODE=23007")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program ``job``, and the plugins ``probe3.so`` to ``probe6.so``."""
    made = tmp_path_factory.mktemp("pretend")
    sources = [*OURS["libnccl"], "engine.cpp", "device.cpp"]
    command = [*COMPILER, "-Wall", "-Werror", "-o", str(made / "job"), str(HERE_TOO / "job.cpp")]
    started = [
        subprocess.Popen([*command, *(str(HERE / name) for name in sources), "-ldl", "-lrt"])
    ]
    for version in (3, 4, 5, 6):
        command = [*COMPILER, "-fPIC", "-shared", f"-DPROBE={version}", str(HERE_TOO / "probe.cpp")]
        started.append(subprocess.Popen([*command, "-o", str(made / f"probe{version}.so")]))
    assert [process.wait() for process in started] == [0] * 5
    return made


class Rank:
    """One process of a job. `ended` are the words that it has said so far."""

    def __init__(self, folder: Path, job: str, rank: int, environment: Mapping[str, str]) -> None:
        self.log = folder / f"{job}-{rank}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [folder / "job", job],
                env={**os.environ, "RANK": str(rank), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
            )

    def does(self, *lines: str) -> None:
        """Give it something to do."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()

    def says(self, word: str, within_s: float = END_S) -> bool:
        """Whether it comes to a line ``say WORD``."""
        self.does(f"say {word}")
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            if word in (self.process.stdout.readline() or ""):
                return True
            time.sleep(0.01)
        return False


@contextmanager
def job(folder: Path, ranks: int, **environment: str) -> Iterator[list[Rank]]:
    """Ranks that wait for what they are to do."""
    name = uuid.uuid4().hex[:20]
    started = [Rank(folder, name, rank, environment) for rank in range(ranks)]
    try:
        yield started
    finally:
        for rank in started:
            rank.process.kill()
            rank.process.wait()


def everybody(ranks: Sequence[Rank], *lines: str) -> None:
    """Give all of them the same to do; RANK is replaced."""
    for number, rank in enumerate(ranks):
        rank.does(*(line.replace("RANK", str(number)) for line in lines))


def script(program: str, rank: str) -> Iterator[str]:
    """What a rank of a recorded program asked of NCCL, with the program's fault."""
    captured = False
    recorded = RECORDED[program][rank]
    yield from (f"comm {words}" for words in recorded["communicators"])
    for operation in recorded["operations"]:
        name, function, number, count, _, algorithm, *_ = operation.replace(",", "").split()
        call = f"{function} {name} {count}"
        if program == "kernel" and rank == "1" and (name, number) == ("B", "#12"):
            yield "hold"
        if program == "graph" and count == "1024" and number != "#0":
            if not captured:
                yield from ("sync", "capture", call, "captured")
            captured = True
            yield "replay"
            if operation != recorded["operations"][-1]:
                yield "sync"
        else:
            yield call
        if algorithm.startswith("TREE"):
            yield "sync"
            if program == "exit0" and number == "#5":
                yield from ("sleep 300", "exit") if rank == "2" else ("sleep 900",)
    if program == "none":
        yield from ("sync", "destroy")
    yield f"sleep {int(HANG_S * 1000)}"


def run(folder: Path, program: str, version: int) -> dict[str, Pattern]:
    """The patterns of a recorded program, executed here."""
    plugin = str(folder / f"probe{version}.so")
    with job(folder, 4, PRETEND_LINKS="sockets", NCCL_PROFILER_PLUGIN=plugin) as ranks:
        for number, rank in enumerate(ranks):
            rank.does(*script(program, str(number)))
        for number, rank in enumerate(ranks):
            assert (program == "exit0" and number == 2) or rank.says("end")
        return patterns(
            {str(number): rank.log.read_text().splitlines() for number, rank in enumerate(ranks)}
        )


@pytest.mark.parametrize("program", RECORDED)
def test_profiler_gets_the_events_that_it_gets_on_a_device(folder: Path, program: str) -> None:
    made = run(folder, program, 5)
    assert made == {rank: Pattern(**of) for rank, of in RECORDED[program].items()}  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [3, 4, 6])
def test_each_version_of_the_interface_is_told_the_same(folder: Path, version: int) -> None:
    for rank, made in run(folder, "kernel", version).items():
        assert made.operations == RECORDED["kernel"][rank]["operations"]
        assert made.host == RECORDED["kernel"][rank]["host"]


@pytest.mark.parametrize("links", ["memory", "sockets"])
def test_device_goes_on_when_its_process_is_stopped_and_proxies_do_not(
    folder: Path, links: str
) -> None:
    """Rank 2 is above 1 and 3 in the tree, and passes on what they give."""
    with job(folder, 4, PRETEND_LINKS=links) as ranks:
        everybody(ranks, "comm W 4 RANK", "AllReduce W 1", "sync")
        for rank in ranks:
            assert rank.says("ready")
        ranks[2].does("AllReduce W 1", "stop")
        os.waitpid(ranks[2].process.pid, os.WUNTRACED)
        others = [rank for rank in ranks if rank is not ranks[2]]
        for rank in others:
            rank.does("AllReduce W 1", "sync")
        for rank in others:
            assert rank.says("done", HANG_S if links == "sockets" else END_S) == (links == "memory")
        ranks[2].process.send_signal(signal.SIGCONT)
        for rank in ranks:
            assert rank.says("all")


def test_small_message_is_sent_without_a_receiver_but_not_a_ninth(folder: Path) -> None:
    with job(folder, 2) as ranks:
        everybody(ranks, "comm W 2 RANK")
        ranks[0].does(*["send W 4 1"] * 8, "sync")
        assert ranks[0].says("eight")
        ranks[0].does("send W 4 1", "sync")
        assert not ranks[0].says("nine", HANG_S)
        ranks[1].does("recv W 4 0", "sync")
        assert ranks[0].says("again")


def test_who_expects_more_than_is_sent_waits_for_ever(folder: Path) -> None:
    with job(folder, 2) as ranks:
        everybody(ranks, "comm W 2 RANK")
        ranks[0].does("send W 4 1", "send W 9 1", "sync")
        assert ranks[0].says("sent")
        ranks[1].does("recv W 3 0", "sync")
        assert ranks[1].says("less")
        ranks[1].does("recv W 10 0", "sync")
        assert not ranks[1].says("more", HANG_S)
