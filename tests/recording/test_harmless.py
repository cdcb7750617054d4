"""Whatever goes wrong around the recorder, the job's result and exit code do not change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.recording import ring_location
from hangscope.ring import local_store
from hangscope.ring.reader import RingReader
from hangscope.ring.writer import RingIdentity
from hangscope.trace.rings.read import read_ring
from tests.real_jobs import JobResult, environment, run, run_each, worlds
from tests.recording.launcher import JOBS, ranks, recording

RESULT = "RESULT [1.0, 1.0, 1.0, 1.0]"


def small(manner: str, directory: Path | str, **extra: str) -> JobResult:
    """The small job as a single rank."""
    return ranks("small_job", 1, recording(directory, **extra), arguments=(manner,))


def rings(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.ring"))


def only_ring(directory: Path) -> Path:
    (ring,) = rings(directory)
    return ring


def assert_unharmed(job: JobResult, warnings: int = 1) -> None:
    """The job's own result and exit code, and this many lines from us."""
    assert RESULT in job.output, job.output
    assert job.returncode == 0, job.output
    assert len(job.said) == warnings, job.said


# -- places ----------------------------------------------------------------------------------


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A directory on which a tmpfs can be mounted; unmounted afterwards."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    place = tmp_path / "mounted"
    place.mkdir()
    yield place
    subprocess.run(["umount", str(place)], check=False, capture_output=True)


def mount(place: Path, options: str) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "hangscope-test", str(place)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")


def test_full_directory_costs_one_line_and_no_result(mounted: Path) -> None:
    mount(mounted, "size=256k")
    job = small("plain", mounted / "run")
    assert_unharmed(job)
    assert "No space left" in job.said[0]
    assert "set HANGSCOPE_DIR" in job.said[0]
    assert rings(mounted / "run") == []


def test_directory_that_fills_up_later_changes_nothing(mounted: Path) -> None:
    """The file's blocks are reserved at creation, so filling the disk afterwards is harmless."""
    mount(mounted, "size=8m")
    env = recording(mounted / "run") | {"FILL": str(mounted / "filler")}
    code = (
        "import os, runpy, sys; import torch\n"
        "try:\n  open(os.environ['FILL'], 'wb').write(bytes(9 << 20))\nexcept OSError: pass\n"
        f"sys.argv = ['small_job', 'many']; runpy.run_path({str(JOBS / 'small_job.py')!r}, "
        "run_name='__main__')"
    )
    job = run([sys.executable, "-c", code], env | worlds(1)[0])
    assert_unharmed(job, warnings=0)
    assert len(read_ring(only_ring(mounted / "run")).records) == 201


def test_read_only_directory_costs_one_line_and_no_result(mounted: Path) -> None:
    mount(mounted, "size=8m,ro")
    job = small("plain", mounted / "run")
    assert_unharmed(job)
    assert "Read-only file system" in job.said[0]


def test_unwritable_directory_costs_one_line_and_no_result(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_unharmed(small("plain", tmp_path / "file" / "run"))


def test_directory_deleted_under_it_changes_nothing(tmp_path: Path) -> None:
    job = small("delete", tmp_path / "run")
    assert_unharmed(job, warnings=0)


def test_unwritable_tmp_changes_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a mount namespace needs root")
    # Bound to itself, so that files in /tmp (a checkout, say) stay readable.
    script = "(mount --bind /tmp /tmp && mount -o remount,ro,bind /tmp) 2>/dev/null || exit 77; "
    script += f"touch /tmp/x 2>/dev/null && exit 78; exec {sys.executable} "
    script += f"{JOBS / 'small_job.py'} plain"
    directory = Path("/var/tmp") / f"hangscope-test-{os.getpid()}"
    job = run(
        ["unshare", "-m", "sh", "-c", script],
        recording(directory) | worlds(1)[0],
    )
    subprocess.run(["rm", "-rf", str(directory)], check=True)
    if job.returncode == 77 or "unshare" in job.output:
        pytest.skip("mount namespaces are not allowed here")
    assert_unharmed(job, warnings=0)


def test_network_file_system_gets_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS no store in a training step may touch the network, so the ring is in local memory."""
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setattr(ring_location, "is_network", lambda path: True)
    monkeypatch.setattr(local_store, "PLACES", (local,))
    identity = RingIdentity(run_id="r", rank=0, world_size=1, pid=1)
    ring = ring_location.open_ring(tmp_path / "nfs", identity, 16)
    link = tmp_path / "nfs" / "rank_0.ring"
    assert link.is_symlink()
    assert local in ring.path.parents
    assert RingReader(link).header().world_size == 1
    monkeypatch.setattr(local_store, "PLACES", (Path("/proc/nowhere"),))
    with pytest.raises(OSError, match="neither"):
        ring_location.open_ring(tmp_path / "nfs2", identity, 16)


@pytest.mark.parametrize(
    ("kind", "far"),
    [("nfs4", True), ("fuse", True), ("fuse.rclone", True), ("fuseblk", False), ("ext4", False)],
)
def test_fuse_counts_as_a_network_file_system(
    monkeypatch: pytest.MonkeyPatch, kind: str, far: bool
) -> None:
    monkeypatch.setattr(ring_location, "file_system_of", lambda path: kind)
    assert ring_location.is_network(Path("/run")) == far


def test_collectives_never_touch_the_run_directory(tmp_path: Path) -> None:
    """Once the ring is open, collectives do not touch the run directory any more."""
    code = (
        "import os, sys, runpy, torch, builtins, pathlib\n"
        "directory = os.environ['HANGSCOPE_DIR']\n"
        "touched = []\n"
        "sys.addaudithook(lambda event, args: touched.append((event, str(args[0]))) "
        "if event in ('open', 'os.listdir', 'os.scandir', 'os.rename') "
        "and str(args[0]).startswith(directory) else None)\n"
        "sys.argv = ['small_job', 'many']\n"
        "try:\n"
        f"  runpy.run_path({str(JOBS / 'small_job.py')!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print('TOUCHED', touched)\n"
    )
    job = run([sys.executable, "-c", code], recording(tmp_path) | worlds(1)[0])
    assert_unharmed(job, warnings=0)
    assert "TOUCHED []" in job.output, job.output


# -- processes -------------------------------------------------------------------------------


def test_newest_records_are_kept_after_the_ring_has_wrapped(tmp_path: Path) -> None:
    assert_unharmed(small("many", tmp_path, HANGSCOPE_BUFFER="16"), warnings=0)
    fragment = read_ring(only_ring(tmp_path))
    seqs = fragment.records["collective_seq"].tolist()
    assert seqs == list(range(186, 202))
    assert int(fragment.members["enqueued"][0]) == 201
    assert fragment.facts.oldest_record_id == 186


def test_children_never_touch_the_ring(tmp_path: Path) -> None:
    """Fork, fork and exec, both kinds of workers, a spawned helper: only the rank has a ring."""
    job = small("children", tmp_path)
    assert_unharmed(job, warnings=0)
    assert f"{RESULT} ['0', 'child True', 28.0, 28.0, 0]" in job.output, job.output
    fragment = read_ring(only_ring(tmp_path))
    assert [s.op for s in fragment.signatures] == ["all_reduce"], fragment.signatures
    assert fragment.facts.exception is None
    assert fragment.facts.exit is not None
    assert fragment.facts.exit.kind == "clean"


def test_newest_of_two_jobs_in_one_directory_is_read(tmp_path: Path) -> None:
    from hangscope.trace.load import load_trace

    assert ranks("small_job", 2, recording(tmp_path)).returncode == 0
    assert_unharmed(ranks("small_job", 1, recording(tmp_path)), warnings=0)
    assert len(rings(tmp_path)) == 3
    trace = load_trace([tmp_path])
    assert trace.world_size == 1
    assert sorted(trace.ranks) == [0]


def test_two_jobs_at_once_in_one_directory_are_both_recorded(tmp_path: Path) -> None:
    env = recording(tmp_path)
    command = [sys.executable, str(JOBS / "small_job.py"), "many"]
    jobs = run_each(command, [env | worlds(1)[0] for _ in range(2)])
    assert jobs.output.count(RESULT) == 2, jobs.output
    assert [len(read_ring(path).records) for path in rings(tmp_path)] == [201, 201]


def test_wait_of_the_job_sees_its_own_children_only(tmp_path: Path) -> None:
    env = recording(tmp_path) | {"HANGSCOPE_MONITOR": "1"}
    job = ranks("small_job", 1, env, arguments=("os-wait",))
    assert f"{RESULT} True, no other" in job.output, job.output


@pytest.mark.parametrize("manner", ["at-exit", "late-exit"])
def test_interpreter_shutdown_ends_as_without_recording(manner: str, tmp_path: Path) -> None:
    job = small(manner, tmp_path)
    without = ranks("small_job", 1, environment(), arguments=(manner,))
    assert job.returncode == without.returncode, (job.output, without.output)
    assert RESULT in job.output
    assert job.said == []


def test_exceptions_of_the_jobs_signal_handlers_arrive(tmp_path: Path) -> None:
    job = small("alarm", tmp_path)
    assert_unharmed(job, warnings=0)
    assert f"{RESULT} missed 0 of True" in job.output, job.output


# -- ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manner", "code", "kind"),
    [
        ("raise", 1, "exception"),
        ("sys-exit", 3, "code"),
        ("os-exit", 5, "code"),
        ("terminate", -15, "unknown"),
        ("thread", 0, "clean"),
        ("thread-exit", 0, "clean"),
    ],
)
def test_ends_are_recorded(tmp_path: Path, manner: str, code: int, kind: str) -> None:
    job = small(manner, tmp_path)
    assert job.returncode == code, job.output
    facts = read_ring(only_ring(tmp_path)).facts
    assert facts.alive is False
    assert facts.exit is not None
    assert facts.exit.kind == kind
    if manner in ("raise", "thread"):
        assert facts.exception is not None
        assert facts.exception.is_main_thread == (manner == "raise")
        assert facts.exception.stack[0].filename.endswith("small_job.py")
        wanted = "ValueError" if manner == "raise" else "ZeroDivisionError"
        assert facts.exception.type_name == wanted
    else:
        assert facts.exception is None


# -- faults ----------------------------------------------------------------------------------


@pytest.mark.timed  # torch may stand still where a group ends, see the job
@pytest.mark.timeout(200)
def test_exception_in_every_function_of_the_recorder(tmp_path: Path) -> None:
    """Each function of the recorder raises in turn, and so does each closure of the hot path: the
    result is the same, one line is printed, and all patches are undone."""
    env = environment(RESULTS=str(tmp_path), HANGSCOPE_COMPILED="0")
    done = subprocess.run(
        [sys.executable, str(JOBS / "fault_job.py")],
        env=env,
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    data = json.loads(done.stdout.splitlines()[-1])
    outcome = data["outcome"]
    assert {k: v["result"] for k, v in outcome.items() if v["result"] != data["expected"]} == {}
    called = {name: v for name, v in outcome.items() if v["calls"]}
    assert len(called) > 200
    # The first two lose nothing; the last is the thread's entry point, which has no caller.
    silent = {"Watcher.stop", "RingGuard.remove", "Watcher.run"}
    wrong = {k: v["said"] for k, v in called.items() if len(v["said"]) != 1 and k not in silent}
    assert wrong == {}
    # Except if removing them is what fails.
    left = {name for name, v in outcome.items() if not v["hooks_back"]}
    assert left <= {"Lifecycle.remove", "Patches.undo"}
    assert {"what Recorder.beginner makes", "what Recorder._writer makes"} <= set(called)
    assert "Recorder.beginner" in called
    assert "RingWriter.intern" in called
    assert "StackInterner.current" in called
