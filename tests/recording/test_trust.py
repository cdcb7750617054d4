"""Native code is loaded only from where nobody else can have put it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hangscope.nccl_plugin.place import PLACE, file_name
from hangscope.recording.compiled import load
from hangscope.recording.compiled.build import BuildError, build
from hangscope.recording.device_events import PLUGIN_VARIABLE, switch_on
from hangscope.ring.trusted_files import UntrustedError, cache_directory, check_trusted

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    file = folder / "hot_path.so"
    file.write_bytes(b"")
    for place in (folder, folder.parent, file):
        place.chmod(0o755)
    return file


def test_what_only_its_owner_may_write_is_trusted(module: Path) -> None:
    check_trusted(module)


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
@pytest.mark.parametrize("place", ["", "..", "../.."])
def test_what_others_may_write_is_not(module: Path, place: str, mode: int) -> None:
    Path(os.path.normpath(module / place)).chmod(mode)
    with pytest.raises(UntrustedError, match="others may write"):
        check_trusted(module)


def test_others_cannot_replace_what_lies_in_a_sticky_directory(module: Path) -> None:
    module.parent.parent.chmod(0o1777)
    check_trusted(module)
    with pytest.raises(UntrustedError, match="others may write"):
        check_trusted(module.parent.parent)  # but they can add to it


@as_root
@pytest.mark.parametrize("place", ["", "..", "../.."])
def test_what_belongs_to_somebody_else_is_not(module: Path, place: str) -> None:
    os.chown(os.path.normpath(module / place), NOBODY, -1)
    with pytest.raises(UntrustedError, match=f"user {NOBODY}"):
        check_trusted(module)


@as_root
def test_a_link_of_somebody_else_is_not_followed(module: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "link"
    link.symlink_to(module.parent)
    check_trusted(link / module.name)
    os.lchown(link, NOBODY, -1)
    with pytest.raises(UntrustedError, match=f"user {NOBODY}"):
        check_trusted(link / module.name)


def test_where_a_link_leads_counts(module: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(module.parent)
    module.parent.parent.chmod(0o777)
    with pytest.raises(UntrustedError, match="others may write"):
        check_trusted(link / module.name)


def test_a_relative_path_is_not(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(module.parent)
    with pytest.raises(UntrustedError, match="relative"):
        check_trusted(Path(module.name))


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], list[Path]]:
    """What a process would import that looks for the hot path in a directory."""
    pytest.importorskip("torch")

    def look_in(place: Path) -> list[Path]:
        found: list[Path] = []
        monkeypatch.setenv("HANGSCOPE_COMPILED", "1")
        monkeypatch.setenv(load.PLACE, str(place))
        monkeypatch.setattr(load, "file_name", lambda torch: "hot_path.so")
        monkeypatch.setattr(load, "_imported", lambda path: found.append(path))
        load.compiled.__wrapped__()
        return found

    return look_in


def test_a_planted_module_is_not_loaded(
    module: Path, imported: Callable[[Path], list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert imported(module.parent) == [module]
    module.parent.chmod(0o777)
    assert imported(module.parent) == []
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"chmod go-w {module.parent}" in said


def test_a_module_below_the_working_directory_is_not_loaded(
    module: Path, imported: Callable[[Path], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(module.parent.parent)
    assert imported(Path("b")) == []


def test_nothing_is_compiled_to_where_it_would_not_be_loaded(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(BuildError, match="chmod go-w"):
        build(shared)


def test_the_cache_is_never_below_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert cache_directory().is_absolute()


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_nccl_is_told_of_its_plugin_only_if_nobody_else_can_exchange_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path))
    (tmp_path / file_name()).write_bytes(b"")
    tmp_path.chmod(mode)
    environ: dict[str, str] = {}
    said: list[str] = []
    switch_on(environ, tmp_path / "rank_0.ring", 1, said.append)
    assert (PLUGIN_VARIABLE in environ) is (mode == 0o755)
    assert any("others may write" in line for line in said) is (mode == 0o777)


def test_nccl_is_never_told_of_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / file_name()).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PLACE, "here")
    environ: dict[str, str] = {}
    said: list[str] = []
    switch_on(environ, tmp_path / "rank_0.ring", 1, said.append)
    assert PLUGIN_VARIABLE not in environ
    assert any("relative" in line for line in said)
