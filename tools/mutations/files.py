"""One mutated file or folder of each format that HangScope reads, made from recorded jobs."""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import io
import json
import lzma
import os
import pickle
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from hangscope.ring import layout
from hangscope.ring.layout import GROUP, HEADER, SLOT
from hangscope.trace.files.unpickle import load_plain
from tools.mutations.values import NUMBERS, TOKENS, damaged_bytes, damaged_text, mutated

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"
_FRAME = {"name": "f", "filename": "/job/train.py", "line": 3, "short_filename": "train.py"}
PY_SPY = [
    {
        "pid": 71, "thread_id": 139, "thread_name": "MainThread", "os_thread_id": 71,
        "active": False, "owns_gil": False,
        "frames": [{**_FRAME, "module": None, "locals": None, "is_entry": False}],
        "process_info": {"pid": 71, "command_line": "python train.py", "parent": None},
    }
]  # fmt: skip
ERROR_FILE = {
    "message": {
        "message": "RuntimeError: x",
        "extraInfo": {
            "py_callstack": 'Traceback (most recent call last):\n  File "train.py", line 3, in f\n'
            "RuntimeError: x\n",
            "timestamp": "1760000000",
        },
    }
}
RAS = {
    "nccl_version": "2.28.3", "cuda_runtime_version": 12080,
    "communicators": [
        {
            "hash": "0x1a2b", "size": 2, "rank_count": 2, "missing_ranks": 0,
            "ranks": [
                {
                    "rank": rank, "host": "node0", "pid": 70 + rank, "cuda_dev": rank,
                    "nvml_dev": rank, "status": "RUNNING",
                    "status_flags": {"init_state": 7, "async_error": 0, "finalized": False},
                    "coll_counts": {"AllReduce": 9 + rank, "Broadcast": 1},
                }
                for rank in range(2)
            ],
        }
    ],
}  # fmt: skip
EXPORT = [
    {"timestamp": "2026-08-16T10:00:00Z", "message": f"[rank{n}]: RuntimeError: x", "host": "a"}
    for n in range(3)
]


@functools.cache
def recorded(suffix: str) -> tuple[Path, ...]:
    """The folders of recorded jobs that hold files with this suffix ("" for pickles)."""
    found = FIXTURES.rglob(f"*{suffix}" if suffix else "*_rank_*")
    return tuple(sorted({path.parent for path in found if _is_of(path, suffix)}))


@functools.cache
def _is_of(path: Path, suffix: str) -> bool:
    if path.suffix != suffix or not path.is_file():
        return False
    if suffix:
        return True
    try:
        load_plain(path.read_bytes())
    except ValueError:  # recorded as damaged
        return False
    return True


def make_job(folder: Path, rng: random.Random) -> None:
    """Make the files of one mutated job in a folder."""
    name = rng.choice(tuple(_KINDS))
    _KINDS[name](folder, rng)
    if rng.random() < 0.1:
        with contextlib.suppress(OSError):  # a folder or FIFO has the name of one of its files
            rng.choice(tuple(_KINDS.values()))(folder, rng)


def _copied(suffix: str, folder: Path, rng: random.Random) -> list[Path]:
    """A copy of a recorded job; returns its files of one kind, in random order."""
    source = rng.choice(recorded(suffix))
    shutil.copytree(source, folder, dirs_exist_ok=True)
    files = sorted(folder / path.name for path in source.iterdir() if _is_of(path, suffix))
    return rng.sample(files, len(files))


def _some(files: list[Path], rng: random.Random) -> list[Path]:
    return files[: rng.choice((1, 1, 2, len(files)))]


def rings(folder: Path, rng: random.Random) -> None:
    """Rings with wrong numbers in headers, groups, slots and values."""
    for path in _some(_copied(".ring", folder, rng), rng):
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice((1, 1, 3, 10))):
            _damage_ring(data, rng)
        path.write_bytes(damaged_bytes(bytes(data), rng) if rng.random() < 0.1 else data)


def _fields(table: Any) -> Any:
    return table.fields


def _damage_ring(data: bytearray, rng: random.Random) -> None:
    start = layout.FIXED_START.unpack_from(data)
    slots, groups_at, slots_at, samples_at, values_at = (start[n] for n in (4, 7, 8, 9, 11))
    table, at, count = rng.choice(
        (
            (HEADER, 0, 1), (GROUP, groups_at, 8), (SLOT, slots_at, slots),
            (None, samples_at, 16), (None, values_at, 256),
        )
    )  # fmt: skip
    if table is None:
        place, size = at + 8 * rng.randrange(count), rng.choice((4, 8))
    else:
        name = rng.choice(table.names or ())
        field, offset = _fields(table)[name][:2]
        place = at + rng.randrange(max(count, 1)) * table.itemsize + offset
        size = min(field.itemsize, 8)
    number = rng.choice((*NUMBERS[:17], rng.randrange(2**32)))
    value = (int(number) % (1 << 8 * size)).to_bytes(size, "little")
    if place >= 0 and place + size <= len(data):
        data[place : place + size] = value


def pickles(folder: Path, rng: random.Random) -> None:
    """Flight Recorder dumps with wrong values, or a damaged stream."""
    for path in _some(_copied("", folder, rng), rng):
        document = load_plain(path.read_bytes())
        for _ in range(rng.choice((1, 1, 4, 20))):
            document = mutated(document, rng)
        try:
            data = pickle.dumps(document, protocol=rng.choice((0, 2, 4, 5)))
        except RecursionError:  # it has been nested too often
            data = path.read_bytes()
        path.write_bytes(damaged_bytes(data, rng) if rng.random() < 0.3 else data)


def json_dumps(folder: Path, rng: random.Random) -> None:
    """The same as JSON, as several documents in a file, or as printed by Python."""
    for path in _some(_copied("", folder, rng), rng):
        document = mutated(load_plain(path.read_bytes()), rng)
        path.write_bytes(_json_bytes(document, rng))


def _json_bytes(document: Any, rng: random.Random) -> bytes:
    form = rng.randrange(4)
    text = repr(document) if form == 0 else json.dumps(document, indent=form if form > 1 else None)
    if form == 3:
        text = "\n".join(json.dumps(document) for _ in range(3))
    if rng.random() < 0.2:
        text = damaged_text(text, rng)
    data = text.encode("utf-8", "surrogatepass")
    return damaged_bytes(data, rng) if rng.random() < 0.2 else data


def reports(folder: Path, rng: random.Random) -> None:
    """Stacks, RAS reports, error files and exported logs as JSON."""
    for number in range(rng.choice((1, 2))):
        name, document = rng.choice(
            (
                (f"stack_rank_{number}.json", PY_SPY), (f"ras_{number}.json", RAS),
                ("error.json", ERROR_FILE), ("export.json", EXPORT),
            )
        )  # fmt: skip
        for _ in range(rng.choice((1, 1, 5))):
            document = mutated(document, rng)
        (folder / name).write_bytes(_json_bytes(document, rng))


def logs(folder: Path, rng: random.Random) -> None:
    """Job logs, also of two jobs in one, in other encodings and with hostile lines."""
    for path in _some(_copied(".log", folder, rng), rng):
        text = path.read_text("utf-8", "replace")
        if rng.random() < 0.2:
            other = next(rng.choice(recorded(".log")).glob("*.log"))
            text += other.read_text("utf-8", "replace")
        for _ in range(rng.choice((1, 2, 8))):
            text = damaged_text(text, rng)
        encoding = rng.choice(("utf-8",) * 6 + ("utf-16", "utf-16-be", "utf-8-sig"))
        data = text.encode(encoding, "replace")
        path.write_bytes(damaged_bytes(data, rng) if rng.random() < 0.2 else data)


def journals(folder: Path, rng: random.Random) -> None:
    """A monitor's journal with wrong values in its lines, beside intact rings."""
    for path in _some(_copied(".journal", folder, rng), rng):
        lines = path.read_bytes().splitlines()
        index = rng.randrange(len(lines))
        lines[index] = json.dumps(mutated(orjson.loads(lines[index]), rng)).encode()
        if rng.random() < 0.3:
            lines[rng.randrange(len(lines))] = damaged_bytes(lines[index], rng)
        path.write_bytes(b"\n".join(lines) + b"\n")


def compressed(folder: Path, rng: random.Random) -> None:
    """Compressed dumps and logs: damaged, cut, several in one, or of something else."""
    rng.choice((pickles, logs, json_dumps, rings))(folder, rng)
    for path in _some([path for path in folder.iterdir() if path.is_file()], rng):
        pack = rng.choice((gzip.compress, bz2.compress, lzma.compress))
        data = pack(path.read_bytes())
        if rng.random() < 0.1:
            data = pack(bytes(rng.choice((b"\n", b"0", b"\0"))) * (64 << 20))
        if rng.random() < 0.2:
            data = pack(data)
        if rng.random() < 0.4:
            data = damaged_bytes(data, rng) + rng.choice((b"", data))
        path.unlink()
        path.with_name(f"{path.name}.gz").write_bytes(data)


def archives(folder: Path, rng: random.Random) -> None:
    """Archives with names that lead elsewhere, links, devices, holes and wrong sizes."""
    inside = folder / ".inside"
    inside.mkdir()
    rng.choice((rings, pickles, logs, journals))(inside, rng)
    files = sorted(path for path in inside.rglob("*") if path.is_file())
    names = {path: str(path.relative_to(inside)) for path in files}
    for path in _some(files, rng) if rng.random() < 0.5 else []:
        names[path] = rng.choice(
            (
                "../../x",
                "/etc/x",
                "a\0b",
                "C:\\x",
                "x/" * 200 + "y",
                "x" * 300,
                names[files[0]],
                ".",
            )
        )
    data = (_zipped if rng.random() < 0.4 else _taped)(names, rng)
    shutil.rmtree(inside)
    if rng.random() < 0.4:
        data = damaged_bytes(data, rng)
    (folder / rng.choice(("job.tar", "job.zip", "job.tgz"))).write_bytes(data)


def _zipped(names: dict[Path, str], rng: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as made:
        for path, name in names.items():
            made.writestr(name.replace("\0", "_"), path.read_bytes())
    return out.getvalue()


def _taped(names: dict[Path, str], rng: random.Random) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=rng.choice(("w", "w:gz", "w:xz"))) as made:
        for path, name in names.items():
            entry = made.gettarinfo(path, name.replace("\0", "_"))
            if rng.random() < 0.1:
                entry.type = rng.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE))
                entry.linkname = "/dev/zero"
            if rng.random() < 0.1:
                entry.mtime = rng.choice((-1.0, 1e18, 0.5))
            with path.open("rb") as file:
                made.addfile(entry, file)
    return out.getvalue()


def expectations(folder: Path, rng: random.Random) -> None:
    """Fixtures with a damaged expectation."""
    source = rng.choice(recorded(".toml"))
    shutil.copytree(source, folder, dirs_exist_ok=True)
    path = folder / "expected.toml"
    text = path.read_text("utf-8")
    for _ in range(rng.choice((1, 3))):
        text = damaged_text(text, rng)
    if rng.random() < 0.2:
        text += f"x = {'[' * 2000}{']' * 2000}\n"
    path.write_text(text, "utf-8", "replace")


def odd_files(folder: Path, rng: random.Random) -> None:
    """What is no regular file, holds nothing, or claims to be large."""
    rng.choice((rings, logs, pickles))(folder, rng)
    kind = rng.randrange(6)
    path = folder / rng.choice(("rank_9.ring", "x.log", "m.journal", "nccl_trace_rank_9"))
    path.unlink(missing_ok=True)  # a mutated name may be the same
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.symlink_to(rng.choice(("/dev/zero", "/proc/self/mem", ".", path.name, "/nowhere")))
    elif kind == 2:
        with path.open("wb") as file:
            file.write(b"HSRING\0\1" if rng.random() < 0.5 else b'{"entries": [')
            file.truncate(1 << rng.choice((20, 33, 40)))
    elif kind == 3:
        path.write_bytes(rng.choice(TOKENS).encode("utf-8", "replace") * 20_000)
    elif kind == 4:
        path.mkdir()
    else:
        path.write_bytes(bytes(rng.randrange(256) for _ in range(3000)))


_KINDS: dict[str, Callable[[Path, random.Random], None]] = {
    "rings": rings, "pickles": pickles, "json": json_dumps, "reports": reports, "logs": logs,
    "journals": journals, "compressed": compressed, "archives": archives,
    "expectations": expectations, "odd files": odd_files,
}  # fmt: skip
