"""Makes a fixture from a run, and checks that it still gets the same verdict.

Rings, and device rings beside them, are compacted, dumps and logs are copied, and observations of
live processes are written to a journal. The finished fixture is replayed at once; one that does not
reproduce the verdict it was made from is useless, so that is an error and nothing is kept.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from hangscope.diagnosis.model import Diagnosis
from hangscope.replay.compact import compact_ring
from hangscope.replay.compact_device import compact_device_ring
from hangscope.replay.finished_texts import texts_in
from hangscope.replay.fixture import (
    DUMPS,
    EXPECTED,
    Expected,
    Fixture,
    FixtureError,
    load_fixture,
    to_toml,
)
from hangscope.replay.observed import NAME as OBSERVED
from hangscope.replay.observed import write_dump_time, write_observed
from hangscope.replay.redact import Redactor
from hangscope.replay.verify import verify
from hangscope.ring.checks import RingError
from hangscope.trace import formats
from hangscope.trace.files import sniff
from hangscope.trace.files.compression import compress, compression_of
from hangscope.trace.files.unpickle import load_plain
from hangscope.trace.loading.search import walk
from hangscope.trace.model import Trace

_SKIPPED_SUFFIXES = (".pyc", ".so", ".tmp", ".lock", ".pid", ".sock", ".html", ".svg")


def write_fixture(
    trace: Trace,
    diagnosis: Diagnosis,
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    redact: bool = False,
    expected: Expected | None = None,
    check: bool = True,
) -> Fixture:
    """Make a fixture of the run that ``trace`` was read from.

    Parameters
    ----------
    trace, diagnosis:
        The run as it was read, and its diagnosis.
    paths:
        What it was read from; standard input cannot be read again.
    out:
        The folder to create; it must not exist or be empty.
    redact:
        Replace directories, host names and addresses.
    expected:
        The expectation; by default that of ``diagnosis``.
    check:
        Replay the result, which must get the verdict of ``diagnosis``.

    Raises
    ------
    FixtureError
        If ``out`` is not empty, there is nothing to copy, or the result does not get the same
        verdict (then it is removed).
    OSError
        If a file cannot be read or written.
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FixtureError(f"{folder}: already there; give a new folder")
    redactor = Redactor(f.host for f in trace.ranks.values() if f.host) if redact else None
    if redactor is not None:
        redactor.learn(trace)
    dumps = folder / DUMPS
    dumps.mkdir(parents=True)
    try:
        write_evidence(trace, paths, dumps, redactor)
        _write_expectation(folder, _redacted(expected or expectation(diagnosis), redactor))
        if redactor is not None:
            _check_nothing_is_left(folder, redactor)
        fixture = load_fixture(folder)
        if check:
            _same_verdict(fixture, diagnosis)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return fixture


def redact_fixture(path: str | Path) -> Fixture:
    """Replace directories, hosts and addresses in a fixture's dumps, in place.

    Raises
    ------
    FixtureError
        If it is not a fixture, or would no longer get the same verdict (then it is not changed).
    OSError
        If a file cannot be read or written.
    """
    from hangscope.replay.verify import diagnose_fixture

    fixture = load_fixture(path)
    trace, diagnosis = diagnose_fixture(fixture)
    beside = fixture.path.with_name(f".{fixture.path.name}.redacted")
    made = write_fixture(
        trace, diagnosis, [fixture.dumps], beside, redact=True, expected=fixture.expected
    )
    old = fixture.path.with_name(f".{fixture.path.name}.old")
    fixture.dumps.rename(old)
    made.dumps.rename(fixture.dumps)
    shutil.rmtree(old)
    shutil.rmtree(beside)
    return load_fixture(path)


def expectation(diagnosis: Diagnosis) -> Expected:
    """The expectation that a diagnosis meets."""
    playbook = diagnosis.findings[0].playbook if diagnosis.findings else ""
    return Expected(
        verdict=diagnosis.verdict.value,
        culprits=tuple(sorted(diagnosis.culprits)),
        story=diagnosis.summary,
        confidence=diagnosis.confidence.value,
        playbook=playbook.split(",")[0].strip() or None,
        recorded={"world_size": diagnosis.world_size or 0, "backend": diagnosis.backend},
    )


def _write_expectation(folder: Path, expected: Expected) -> None:
    (folder / EXPECTED).write_text(to_toml(expected), encoding="utf-8")


def _redacted(expected: Expected, redactor: Redactor | None) -> Expected:
    if redactor is None:
        return expected
    return replace(
        expected,
        story=redactor.prose(expected.story),
        must_mention=tuple(map(redactor.prose, expected.must_mention)),
        must_not_mention=tuple(map(redactor.prose, expected.must_not_mention)),
        recorded=redactor.value(dict(expected.recorded)),
    )


def _check_nothing_is_left(folder: Path, redactor: Redactor) -> None:
    """Raise `FixtureError` if a file, or its name, says anything that may not stay."""
    for file in (path for path in sorted(folder.rglob("*")) if path.is_file()):
        name = str(file.relative_to(folder))
        compression = compression_of(file.read_bytes()[:8])
        left = redactor.left_in(sniff.read_all(file, compression) + name.encode())
        for text in (name, *texts_in(file)):
            left = left or redactor.foreign_word(text)
        if left:
            raise FixtureError(
                f"{name} still says {left!r} after it was redacted; nothing was written. Take it "
                "out of the original by hand"
            )


def _same_verdict(fixture: Fixture, diagnosis: Diagnosis) -> None:
    again = verify(fixture).diagnosis
    said = (diagnosis.verdict, tuple(sorted(diagnosis.culprits)))
    if again is None or (again.verdict, tuple(sorted(again.culprits))) != said:
        came = f"{again.verdict.value} {list(again.culprits)}" if again else "nothing readable"
        raise FixtureError(
            f"{fixture.path}: the fixture gives {came} where the run gave "
            f"{diagnosis.verdict.value} {list(diagnosis.culprits)}; if the run has moved on since, "
            "try again when it stands still"
        )


# -- copying ---------------------------------------------------------------------------------


def write_evidence(
    trace: Trace, paths: Sequence[str | Path], folder: Path, redactor: Redactor | None = None
) -> None:
    """Copy what a trace was read from into a folder, rings without their unused space.

    With it goes what was observed of the processes, which nothing shows any more elsewhere.

    Raises
    ------
    FixtureError
        If nothing could be copied.
    OSError
        If a file cannot be read or written.
    """
    _copy_sources(trace, paths, folder, redactor)
    if not write_observed(trace, folder / OBSERVED, redactor):
        write_dump_time(trace, folder / OBSERVED)


def _copy_sources(
    trace: Trace, paths: Sequence[str | Path], dumps: Path, redactor: Redactor | None
) -> None:
    if any(str(path) == "-" for path in paths):
        raise FixtureError("standard input cannot be read twice; save the log to a file first")
    used = {source.path: source.rank for source in trace.sources}
    leaving = {r for r, facts in trace.ranks.items() if facts.alive and facts.exit is None}
    copied = 0
    for path in map(Path, paths):
        root = path if path.is_dir() else path.parent
        for file in _files(path):
            if str(file) not in used or file.name == OBSERVED:
                continue  # of another attempt, or of no use
            name = str(file.relative_to(root))
            if redactor is not None:
                # A journal's file name contains its host. Paths below dumps are relative.
                name = redactor.prose(name)
            target = dumps / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(file, target, redactor, on_its_way_out=used[str(file)] in leaving)
            copied += 1
    if not copied:
        raise FixtureError(f"nothing to copy in {' '.join(map(str, paths))}")


def _files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        yield path
        return
    for file in sorted(Path(at, name) for at, _, names in walk(str(path)) for name in names):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not hidden and not file.name.endswith(_SKIPPED_SUFFIXES):
            yield file


def _copy(source: Path, target: Path, redactor: Redactor | None, *, on_its_way_out: bool) -> None:
    kind = sniff.sniff_file(source)
    if kind.name == formats.RING:
        try:
            compact_ring(source, target, redactor, on_its_way_out=on_its_way_out)
        except RingError as error:
            raise FixtureError(f"{source}: {error}") from error
        compact_device_ring(source, target, redactor)
        return
    if redactor is None:
        shutil.copyfile(source, target)
        return
    try:
        data = redacted(sniff.read_all(source, kind.compression), kind.name, redactor)
    except ValueError as error:  # it inflates beyond reason, say
        raise FixtureError(f"{source}: {error}") from error
    target.write_bytes(compress(data, kind.compression) if kind.compression else data)


def redacted(data: bytes, kind: str, redactor: Redactor) -> bytes:
    """The content of a dump, journal or log with its paths, hosts and addresses replaced.

    Raises
    ------
    ValueError
        If the content is not of this ``kind`` (see `hangscope.trace.files.sniff`).
    """
    if kind == formats.PICKLE:
        return pickle.dumps(redactor.value(load_plain(data)), protocol=2)
    if kind == formats.JSON:
        try:
            return orjson.dumps(redactor.value(orjson.loads(data)))
        except orjson.JSONDecodeError:
            pass  # one object per line: a collector's log
    if kind == formats.JOURNAL:
        lines = data.decode("utf-8", "replace").splitlines()
        return "".join(_journal_line(line, redactor) for line in lines).encode()
    return redactor.prose(data.decode("utf-8", "replace")).encode()


def _journal_line(line: str, redactor: Redactor) -> str:
    try:
        return json.dumps(redactor.value(json.loads(line)), separators=(",", ":")) + "\n"
    except ValueError:  # the monitor was killed while writing this line
        return redactor.prose(line) + "\n"
