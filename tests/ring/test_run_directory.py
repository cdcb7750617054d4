"""Nothing outside a run directory is written, truncated or removed, whatever lies in it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.monitor.journal import Journal
from hangscope.monitor.report_claims import claim_report
from hangscope.monitor.ring_links import replace_ring_links
from hangscope.recording.ring_location import discard, link_latest, open_ring
from hangscope.ring import local_store
from hangscope.ring.reader import RingReader
from hangscope.ring.run_directory import create, opened
from hangscope.ring.run_secret import RunSecret
from hangscope.ring.writer import RingIdentity
from hangscope.trace.live.open_ring import RunKey
from tests.real_jobs import environment

_IDENTITY = RingIdentity(run_id="run", rank=0, world_size=1, pid=7)
_OTHER = 65534
_AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A file outside the run directory that must stay as it is."""
    path = tmp_path / "precious.ring"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create(tmp_path / "run")
    return tmp_path / "run"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.long
@pytest.mark.parametrize(
    ("group", "directory_mode", "file_mode"), [("", 0o700, 0o600), ("1", 0o750, 0o640)]
)
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_modes_do_not_depend_on_the_umask(
    tmp_path: Path, group: str, directory_mode: int, file_mode: int, umask: int
) -> None:
    code = """
import os, sys
from pathlib import Path
from hangscope.recording.ring_location import open_ring
from hangscope.monitor.journal import Journal
from hangscope.monitor.report_claims import claim_report
from hangscope.ring.run_secret import RunSecret
from hangscope.ring.writer import RingIdentity
from hangscope.trace.live.open_ring import RunKey
os.umask(int(sys.argv[2]))
path = Path(sys.argv[1])
open_ring(path, RingIdentity("run", 0, 1, pid=7), 16)
Journal(path, RunKey("run", 0), RunSecret()).unseen(0, 7)
assert claim_report(path, None, ("x", (), "", None))
"""
    path = tmp_path / "hangscope-runs" / "run"
    env = environment(**({"HANGSCOPE_GROUP_READ": group} if group else {}))
    subprocess.run([sys.executable, "-c", code, str(path), str(umask)], env=env, check=True)
    assert {_mode(path), _mode(path.parent)} == {directory_mode}
    files = [*path.iterdir()]
    assert len(files) == 3
    assert {_mode(file) for file in files} == {file_mode}


def test_links_in_the_place_of_our_files_are_not_followed(folder: Path, precious: Path) -> None:
    for name in ("rank_0.ring", "rank_0.run.0.ring"):
        (folder / name).symlink_to(precious)
    ring = open_ring(folder, _IDENTITY, 16)
    assert ring.path.name == "rank_0.run.0.7.ring"
    key = RunKey("run", 0)
    journal = Journal(folder, key, RunSecret())
    (folder / journal._name).symlink_to(precious)
    journal.unseen(0, 7)
    cause = ("missing_rank", (1,), "0", 3)
    assert claim_report(folder, key, cause)
    (said,) = folder.glob(".said-*")
    said.unlink()
    said.symlink_to(precious)
    assert claim_report(folder, key, cause), "a link silences nobody"
    discard(folder, ring)
    assert not ring.path.exists()


def test_stacks_go_into_a_new_file(folder: Path, precious: Path) -> None:
    stacks = folder / ".rank_0.stacks"
    for make in (lambda: stacks.symlink_to(precious), lambda: os.link(precious, stacks)):
        make()
        with opened(folder) as directory:
            os.close(directory.fresh_file(stacks.name))
        assert not stacks.is_symlink()
        assert stacks.stat().st_nlink == 1
        stacks.unlink()


def test_appending_to_a_hard_link_or_a_pipe_is_refused(folder: Path, precious: Path) -> None:
    os.link(precious, folder / "linked")
    os.mkfifo(folder / "pipe")
    with opened(folder) as directory:
        for name in ("linked", "pipe"):
            with pytest.raises(OSError):
                directory.appended_file(name)


@pytest.mark.parametrize("name", ["x.ring", "rank_0.ring"])
def test_monitor_moves_no_file_that_a_link_leads_to(
    folder: Path, precious: Path, name: str
) -> None:
    """It used to copy the file over the link, and to delete the file."""
    (folder / name).symlink_to(precious)
    (folder / "up.ring").symlink_to(Path("..") / precious.name)
    replace_ring_links(folder)
    assert (folder / name).is_symlink()


def test_monitor_moves_rings_of_local_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setattr(local_store, "PLACES", (place,))
    monkeypatch.setattr("hangscope.recording.ring_location.is_network", lambda path: True)
    ring = open_ring(folder, _IDENTITY, 16)
    with opened(ring.path.parent) as store:
        os.write(store.fresh_file(".7.rank_0.stacks"), b"stacks")
    assert (folder / "rank_0.ring").is_symlink()
    assert _mode(place / f"hangscope-{os.geteuid()}") == 0o700
    foreign = place / "hangscope-12345" / "run"
    foreign.mkdir(parents=True)
    (foreign / "8.rank_1.ring").write_bytes(ring.path.read_bytes())
    (folder / "rank_1.ring").symlink_to(foreign / "8.rank_1.ring")
    (folder / "rank_2.ring").symlink_to(ring.path.parent / ".." / ".." / "x" / "y.ring")
    replace_ring_links(folder)
    assert not (folder / "rank_0.ring").is_symlink()
    assert RingReader(folder / "rank_0.ring").header().pid == 7
    assert (folder / ".rank_0.stacks").read_bytes() == b"stacks"
    assert not ring.path.exists()
    assert (foreign / "8.rank_1.ring").exists()
    assert not list(folder.glob("*.copy"))


def test_local_memory_that_somebody_else_prepared(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /dev/shm anybody may create our folder first, or a link of that name."""
    monkeypatch.setattr(local_store, "PLACES", (tmp_path,))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    usual = tmp_path / f"hangscope-{os.geteuid()}"
    usual.symlink_to(elsewhere)
    if os.geteuid() == 0:
        os.lchown(usual, _OTHER, _OTHER)
        assert local_store.local_folder("run") == tmp_path / f"{usual.name}-2" / "run"
        assert not list(elsewhere.iterdir())
        usual.unlink()
        usual.mkdir()
        os.chown(usual, _OTHER, _OTHER)
        assert local_store.local_folder("run") == tmp_path / f"{usual.name}-2" / "run"
        assert not list(usual.iterdir())


@_AS_ROOT
@pytest.mark.parametrize("what", ["directory", "link", "the folder of all runs"])
def test_directory_of_another_user_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "hangscope-runs" / "run"
    path.mkdir(parents=True)
    if what == "directory":
        os.chown(path, _OTHER, _OTHER)
    elif what == "link":
        path.rmdir()
        (tmp_path / "mine").mkdir()
        path.symlink_to(tmp_path / "mine")
        os.lchown(path, _OTHER, _OTHER)
    else:
        os.chown(path.parent, _OTHER, _OTHER)
    with pytest.raises(PermissionError, match=rf"user {_OTHER}"):
        open_ring(path, _IDENTITY, 16)
    assert not list(path.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", "hangscope", "run", "--dir", str(path), "--", "true"],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"user {_OTHER}" in done.stderr


@_AS_ROOT
def test_claim_of_another_user_silences_nobody(folder: Path) -> None:
    cause = ("missing_rank", (1,), "0", 3)
    assert claim_report(folder, None, cause)
    assert not claim_report(folder, None, cause)
    (said,) = folder.glob(".said-*")
    os.chown(said, _OTHER, _OTHER)
    os.chown(folder, 0, 0)
    assert claim_report(folder, None, cause)


def test_own_link_to_a_run_directory_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").symlink_to(folder)
    ring = open_ring(tmp_path / "scratch", _IDENTITY, 16)
    assert (folder / ring.path.name).exists()


def test_latest_replaces_a_link_only(tmp_path: Path) -> None:
    runs = tmp_path / "hangscope-runs"
    create(runs / "one")
    link_latest(runs / "one")
    assert os.readlink(runs / "latest") == "one"
    (runs / "latest").unlink()
    (runs / "latest").mkdir()
    link_latest(runs / "one")
    assert (runs / "latest").is_dir()
    assert not list(runs.glob(".latest*"))


@pytest.fixture
def mounted() -> Iterator[Path]:
    """A folder of another user below folders of root alone, as a bind mount in a container."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with tempfile.TemporaryDirectory(dir="/var/lib", prefix="hangscope-test-") as name:
        os.chmod(name, 0o755)
        folder = Path(name) / "of-user"
        folder.mkdir(mode=0o755)
        os.chown(folder, 1000, 1000)
        yield folder


def test_root_may_use_what_one_user_has_mounted(mounted: Path) -> None:
    with opened(mounted) as folder:
        os.close(folder.new_file("x.ring"))
    create(mounted / "runs" / "one")
    assert (mounted / "runs" / "one").is_dir()


@pytest.mark.parametrize("how", ["group", "others", "above", "link", "third user"])
def test_root_uses_no_folder_in_which_a_third_one_may_write(mounted: Path, how: str) -> None:
    folder = mounted / "run"
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    if how in ("group", "others"):
        folder.chmod(0o770 if how == "group" else 0o707)
    elif how == "above":
        mounted.chmod(0o1777)
    elif how == "third user":
        os.chown(mounted, 1001, 1001)
    else:
        folder.rename(mounted / "there")
        (mounted / "way").symlink_to(mounted)
        folder = mounted / "way" / "there"
    with pytest.raises(PermissionError), opened(folder):
        pass
