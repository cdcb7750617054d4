"""The compiled hot path records what Python's does, and does no more harm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from hangscope.cli import compile as compile_command  # noqa: E402
from hangscope.recording.compiled import names  # noqa: E402
from hangscope.recording.compiled.build import BuildError, build  # noqa: E402
from hangscope.recording.compiled.load import BESIDE_THE_PACKAGE, PLACE  # noqa: E402
from hangscope.recording.compiled.names import file_name  # noqa: E402
from hangscope.trace.rings.read import read_ring  # noqa: E402
from tests.real_jobs import JobResult, environment, run, run_each, worlds  # noqa: E402
from tests.recording.coverage import checks_of  # noqa: E402
from tests.recording.launcher import (  # noqa: E402
    JOBS,
    check_waits_on_several_threads,
    ranks,
    recording,
)

# Compiling against torch's headers takes half a minute of processor time: more than the usual limit
# on a crowded machine.
pytestmark = [pytest.mark.xdist_group("compiled"), pytest.mark.timeout(900)]

RESULT = "RESULT [1.0, 1.0, 1.0, 1.0]"
HIDES_REDUCE_OPS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6)
"""From Python; C++ sees them in every torch."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the compiled hot path."""
    return build(tmp_path_factory.mktemp("compiled")).parent


def with_compiled(directory: Path, place: Path, **extra: str) -> dict[str, str]:
    """An environment that records into a directory, with what is compiled in the other one."""
    return recording(directory, HANGSCOPE_COMPILED="1", **{PLACE: str(place)}, **extra)


def two_ranks(code: str, directory: Path, place: Path, value: str) -> JobResult:
    """A program on two recorded ranks; ``value``: "1" with the compiled hot path, "0" without."""
    env = with_compiled(directory, place) | {"HANGSCOPE_COMPILED": value}
    return run_each([sys.executable, "-c", code], [env | world for world in worlds(2)])


@pytest.mark.slow
@pytest.mark.parametrize("script", ["collectives_job", "parallel_job"])
def test_compiled_recorder_is_complete(script: str, compiled: Path, tmp_path: Path) -> None:
    env = with_compiled(tmp_path, compiled, TORCH_FR_BUFFER_SIZE="20000")
    job = ranks(script, 2, env, timeout_s=240)
    assert {values["hook"] for values in job.values.values()} == {"CompiledHook"}
    for check in checks_of(script):
        job.assert_ok(check)
    assert job.said == []
    assert job.returncode == 0, job.output[-3000:]


def test_both_hot_paths_record_the_same(compiled: Path, tmp_path: Path) -> None:
    found = {}
    for name, env in (
        ("DispatcherHook", recording(tmp_path / "python", HANGSCOPE_COMPILED="0")),
        ("CompiledHook", with_compiled(tmp_path / "compiled", compiled)),
    ):
        results = tmp_path / f"{name}-results"
        results.mkdir()
        command = [sys.executable, str(JOBS / "equal_job.py")]
        job = run_each(command, [env | place for place in worlds(2)], results=results)
        assert job.returncode == 0, job.output[-3000:]
        found[name] = [json.loads((results / f"equal_{rank}.json").read_text()) for rank in (0, 1)]
        assert {each["hook"] for each in found[name]} == {name}
    for python, other in zip(*found.values(), strict=True):
        assert len(python["rows"]) > 200
        for expected, row in zip(python["rows"], other["rows"], strict=True):
            if HIDES_REDUCE_OPS:
                row["signature"] = re.sub("reduce_op='[A-Z]+'", "reduce_op=None", row["signature"])
            assert row == expected


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "1"])
def test_wait_that_fails(value: str, compiled: Path, tmp_path: Path) -> None:
    """It raises what it always does, which is kept as the reason why the rank has left."""
    code = (
        "import sys, time, torch, torch.distributed as dist\n"
        "from datetime import timedelta\n"
        "dist.init_process_group('gloo')\n"
        "rank = dist.get_rank()\n"
        "if rank:\n"
        "  time.sleep(2)\n"
        "  sys.exit(0)\n"
        "work = dist.all_reduce(torch.ones(2), async_op=True)\n"
        "try:\n"
        "  raise KeyError('outer')\n"
        "except KeyError as outer:\n"
        "  try:\n"
        "    work.wait(timeout=timedelta(seconds=0.4))\n"
        "  except RuntimeError as error:\n"
        "    frames = error.__traceback__.tb_next is None\n"
        "    print('RAISED', type(error).__name__, error.__context__ is outer, frames)\n"
        "    known = sys.exc_info()[1] is error\n"
        "  print('HANDLED', known, sys.exc_info()[1] is outer)\n"
        "sys.exit(4)\n"
    )
    job = two_ranks(code, tmp_path, compiled, value)
    assert re.findall("RAISED .*", job.output) == [f"RAISED RuntimeError True {value == '1'}"]
    assert "HANDLED True True" in job.output
    fragments = [read_ring(path) for path in tmp_path.glob("*.ring")]
    fragment = min(fragments, key=lambda found: found.facts.rank)
    assert [int(row["state"]) for row in fragment.records] == [0]
    failure = fragment.facts.exception
    assert failure is not None
    assert (failure.type_name, "imed out" in failure.message) == ("RuntimeError", True)


def test_waits_on_several_threads_with_compiled_recorder(compiled: Path) -> None:
    place = {PLACE: str(compiled)}
    check_waits_on_several_threads("CompiledHook", HANGSCOPE_COMPILED="1", **place)


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "1"])
def test_sampled_stack_shows_a_call_in_progress(value: str, compiled: Path, tmp_path: Path) -> None:
    """A barrier that waits inside the operator; a collective whose operator has returned."""
    code = (
        "import threading, time, torch, torch.distributed as dist\n"
        "from hangscope.recording.stack_samples import sample_threads\n"
        "dist.init_process_group('gloo')\n"
        "def look():\n"
        "  time.sleep(0.7)\n"
        "  frames = [line.split('\\0') for line in sample_threads().decode().splitlines()[1:]]\n"
        "  print('INNERMOST', frames[0][1], frames[0][2].rpartition('/recording/')[2])\n"
        "for wait in (dist.monitored_barrier, lambda: dist.all_reduce(torch.ones(2))):\n"
        "  if dist.get_rank():\n"
        "    time.sleep(1.5)\n"
        "  else:\n"
        "    threading.Thread(target=look).start()\n"
        "  wait()\n"
        "time.sleep(0.5)\n"
    )
    job = two_ranks(code, tmp_path, compiled, value)
    assert job.returncode == 0, job.output
    first, second = re.findall(r"INNERMOST (\w+) (\S*)", job.output)
    assert first == ("kernel", "compiled/src/kernel.hpp" if value == "1" else "hook.py")
    assert second[0] != "kernel"


# -- harmless --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "1"])
def test_works_that_nobody_can_wait_for_are_let_go(
    value: str, compiled: Path, tmp_path: Path
) -> None:
    """They pin tensors. Gloo's reduce-scatters and receives show their end only to who waits."""
    code = (
        "import torch, torch.distributed as dist\n"
        "import torch.distributed._functional_collectives as functional\n"
        "from hangscope.recording.api import current_session\n"
        "dist.init_process_group('gloo')\n"
        "seen = current_session().recorder.completions\n"
        "scatter = getattr(functional, 'reduce_scatter_single', functional.reduce_scatter_tensor)\n"
        "held = [dist.reduce_scatter_tensor(torch.ones(1), torch.ones(2), async_op=True)\n"
        "        for _ in range(40)]\n"
        "def count():\n"
        "  return len({id(entry) for entry in [*seen.watched.values(), *seen.boxed]})\n"
        "most = 0\n"
        "for _ in range(200):\n"
        "  scatter(torch.ones(2), 'sum', 0, dist.group.WORLD).wait()\n"
        "  most = max(most, count())\n"
        "print('SCATTERS', most)\n"
        "for work in held:\n"
        "  work.wait()\n"
        "for _ in range(3):\n"
        "  current_session().recorder.catch_up()\n"
        "print('LEFT', count())\n"
        "for _ in range(200):\n"
        "  dist.irecv(torch.ones(1), tag=1)\n"
        "print('RECEIVES', count())\n"
        "dist.barrier()\n"
    )
    job = two_ranks(code, tmp_path, compiled, value)
    assert job.returncode == 0, job.output
    most, left, receives = (
        list(map(int, re.findall(rf"{word} (\d+)", job.output)))
        for word in ("SCATTERS", "LEFT", "RECEIVES")
    )
    assert max(most) < 40 + 40, job.output
    assert left == [0, 0], job.output
    assert max(receives) < 8, job.output
    waited_for = [read_ring(path).records[:40] for path in tmp_path.glob("*.ring")]
    assert [records["state"].tolist() for records in waited_for] == [[2] * 40] * 2


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["children", "alarm", "threads-and-stop"])
def test_compiled_recorder_changes_nothing(manner: str, compiled: Path, tmp_path: Path) -> None:
    env = with_compiled(tmp_path / "run", compiled, HANGSCOPE_BUFFER="64")
    job = ranks("small_job", 1, env, arguments=(manner,))
    assert job.returncode == 0, job.output
    assert RESULT in job.output, job.output
    assert job.said == [], job.said


@pytest.mark.slow
def test_interpreter_shutdown_ends_as_without_compiled_recorder(
    compiled: Path, tmp_path: Path
) -> None:
    job = ranks("small_job", 1, with_compiled(tmp_path, compiled), arguments=("at-exit",))
    without = ranks("small_job", 1, environment(), arguments=("at-exit",))
    assert job.returncode == without.returncode, (job.output, without.output)
    assert RESULT in job.output
    assert job.said == []


@pytest.mark.slow
def test_compiled_recorder_forgets_stacks_and_plans(compiled: Path, tmp_path: Path) -> None:
    job = ranks("small_job", 1, with_compiled(tmp_path, compiled), arguments=("flood",))
    assert job.returncode == 0, job.output
    assert job.said == []
    grown = re.search(r"grew by (-?\d+) MiB", job.output)
    assert grown is not None, job.output
    assert int(grown[1]) < 8  # what a flood leaves behind takes 20 and more


@pytest.mark.slow
def test_exception_in_any_function_that_the_compiled_path_calls(
    compiled: Path, tmp_path: Path
) -> None:
    """The result is the same, one line is printed, and all patches are undone."""
    env = environment(RESULTS=str(tmp_path), HANGSCOPE_COMPILED="1", **{PLACE: str(compiled)})
    callees = (
        "learner", "current", "unmarked", "plan", "register", "drain", "issuer", "failer",
        "_waited",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(JOBS / "fault_job.py"), *callees],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    data = json.loads(done.stdout.splitlines()[-1])
    assert data["hook"] == "CompiledHook"
    called = {name: outcome for name, outcome in data["outcome"].items() if outcome["calls"]}
    for name, outcome in called.items():
        assert outcome["result"] == data["expected"], name
        assert outcome["hooks_back"], name
        assert len(outcome["said"]) == 1, (name, outcome["said"])
    makers = ("Callbacks.learner", "Callbacks.failer", "Recorder.issuer")
    made = {f"what {maker} makes" for maker in makers}
    rest = {"StackInterner.current", "StackInterner.unmarked", "Planner.plan", "Completions.drain"}
    assert made | rest | {"GroupRegistry.register", "Callbacks._waited"} <= set(called)


# -- whether it is used ----------------------------------------------------------------------


def test_file_that_cannot_be_loaded_costs_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "place" / file_name(torch)
    broken.parent.mkdir()
    broken.write_bytes(b"\x7fELF not a library")
    job = ranks("small_job", 1, with_compiled(tmp_path / "run", broken.parent), arguments=("many",))
    assert RESULT in job.output, job.output
    assert job.returncode == 0
    assert len(job.said) == 1, job.said
    assert "the compiled recorder cannot be used, Python's is" in job.said[0]
    (ring,) = (tmp_path / "run").glob("*.ring")
    assert int(read_ring(ring).members["enqueued"][0]) == 201


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "off"])
def test_compiled_recorder_can_be_switched_off(value: str, compiled: Path, tmp_path: Path) -> None:
    code = (
        "import os, torch\n"
        "from hangscope.recording.api import current_session\n"
        "print('HOOK', type(current_session().hook).__name__)\n"
    )
    env = with_compiled(tmp_path, compiled) | {"HANGSCOPE_COMPILED": value} | worlds(1)[0]
    assert "HOOK DispatcherHook" in run([sys.executable, "-c", code], env).output


@pytest.mark.slow
def test_checks_of_reductions_use_the_recorder_in_python(compiled: Path, tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "from hangscope.recording.api import current_session\n"
        "print('HOOK', type(current_session().hook).__name__)\n"
    )
    env = with_compiled(tmp_path, compiled, HANGSCOPE_CHECK_REDUCE="2") | worlds(1)[0]
    assert "HOOK DispatcherHook" in run([sys.executable, "-c", code], env).output


def test_other_sources_need_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    before = file_name(torch)
    monkeypatch.setattr(names, "constants_header", lambda: "another layout")
    assert file_name(torch) != before


# -- making it -------------------------------------------------------------------------------


def compiling(tmp_path: Path, **extra: str) -> JobResult:
    command = [sys.executable, "-m", "hangscope", "compile", "--into", str(tmp_path / "made")]
    return run(command, environment(**extra))


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("/nonexistent/g++", "the compiler /nonexistent/g++ cannot be run: No such file"),
        ("false", "the compiler failed: exit status 1, without a word"),
    ],
)
def test_compiler_that_does_not_work_is_one_line(compiler: str, why: str, tmp_path: Path) -> None:
    job = compiling(tmp_path, CXX=compiler)
    assert job.returncode == 2
    assert why in job.output
    # The plugin is made by a C compiler, which may work.
    said = [line for line in job.output.splitlines() if not line.startswith("built the plugin")]
    assert len(said) == 1, job.output
    assert not list((tmp_path / "made").glob("hot_path*"))


def test_missing_compiler_is_one_line(tmp_path: Path) -> None:
    job = compiling(tmp_path, CXX="", PATH=str(tmp_path))
    assert job.returncode == 2
    assert job.output.strip().endswith("there is no C++ compiler; install g++, or set CXX")


@pytest.mark.slow
def test_what_does_not_work_with_this_torch_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that makes something else stands for a torch whose layout is not what it says."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nfor word; do case "$last" in -o) echo x > "$word";; esac\n'
                        'last="$word"; done\n')  # fmt: skip
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BuildError, match="does not work with this torch"):
        build(tmp_path / "made")
    assert list((tmp_path / "made").iterdir()) == []
    assert os.access(tmp_path / "made", os.W_OK)


def test_compile_says_whether_it_will_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PLACE, raising=False)
    monkeypatch.setattr(compile_command, "build", lambda into: into / "made.so")
    said = {
        place: CliRunner().invoke(compile_command.command, ["--into", str(place)]).output
        for place in (tmp_path, BESIDE_THE_PACKAGE)
    }
    assert f"it is in {tmp_path / 'made.so'}; recording looks for it in" in said[tmp_path]
    assert f"from now on: {BESIDE_THE_PACKAGE / 'made.so'}" in said[BESIDE_THE_PACKAGE]


@pytest.mark.slow
def test_misused_recording_raises(compiled: Path, tmp_path: Path) -> None:
    """In a process of its own, as a crash would be."""
    code = (
        "import mmap\n"
        "from hangscope.recording.compiled.load import compiled\n"
        "from hangscope.ring import layout\n"
        "Recording = compiled().Recording\n"
        "empty = Recording.__new__(Recording)\n"
        "calls = [lambda: empty.finish(1, 0, succeeded=True), lambda: empty.forget(None),\n"
        "    empty.install, empty.remove, empty.close, lambda: empty.waiter(print),\n"
        "    lambda: empty.listening, lambda: setattr(empty, 'listening', True),\n"
        "    lambda: empty.add('x', 0, 0, 0, 0, 0, print, print, print)]\n"
        "for call in calls:\n"
        "    try:\n"
        "        call()\n"
        "    except RuntimeError as error:\n"
        "        assert 'has not begun' in str(error)\n"
        "    else:\n"
        "        raise SystemExit('no error')\n"
        "memory = mmap.mmap(-1, 8192)\n"
        "for at, count in ((4096, 33), (8192, 1), (0, 1), (4100, 1), (4096, 1 << 60), (4096, 0)):\n"
        "    try:\n"
        "        Recording(memory, at, count, 0, {})\n"
        "    except ValueError as error:\n"
        "        assert 'slots' in str(error)\n"
        "    else:\n"
        "        raise SystemExit('no error')\n"
        "print('misused')\n"
    )
    environment = with_compiled(tmp_path, compiled) | {"HANGSCOPE": "0"}
    job = run_each([sys.executable, "-c", code], [environment])
    assert job.output.strip().endswith("misused"), job.output
