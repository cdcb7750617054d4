"""Every text in a finished fixture's files, for the search after redaction.

The bytes of rings and pickles cannot be searched as they are: their numbers look like letters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hangscope.ring.device_reader import read_device_ring
from hangscope.ring.layout import VALUE_HEADER, ValueKind, align8
from hangscope.ring.reader import RingReader, decode_text
from hangscope.trace import formats
from hangscope.trace.files import sniff
from hangscope.trace.files.unpickle import load_plain

_DOCUMENTS = (ValueKind.SIGNATURE, ValueKind.EXCEPTION)
_NUMBERS = (ValueKind.STACK, ValueKind.RANKS)


def texts_in(file: Path) -> Iterator[str]:
    """The texts in a file that `hangscope.replay.write` has written.

    Raises
    ------
    ValueError
        If it is not what it should be.
    OSError
        If it cannot be read.
    """
    kind = sniff.sniff_file(file)
    if kind.name == formats.RING:
        yield from _texts_of_ring(file)
        return
    if kind.name == formats.DEVICE_RING:
        yield from _texts_of(read_device_ring(file).communicators["name"].tolist())
        return
    data = sniff.read_all(file, kind.compression)
    if kind.name == formats.PICKLE:
        yield from _texts_of(load_plain(data))
    elif kind.name == formats.JSON and (document := _json(data)) is not None:
        yield from _texts_of(document)
    else:
        yield data.decode("utf-8", "replace")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (bytes, bytearray)):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts_of(key)
            yield from _texts_of(inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from _texts_of(inner)


def _texts_of_ring(file: Path) -> Iterator[str]:
    reader = RingReader(file)
    try:
        header, sample = reader.header(), reader.sample()
        yield from map(decode_text, (header.run_id, header.host, header.cwd, header.seal))
        yield sample.text if sample is not None else ""
        at, end = 8, header.values_bytes
        while at + VALUE_HEADER.size <= end:
            raw = reader.value(at // 8)
            if raw is None:
                break
            kind = next((k for k in ValueKind if reader.value(at // 8, k) is not None), None)
            if kind in _DOCUMENTS:
                yield from _texts_of(_json(raw))
            elif kind not in _NUMBERS:
                yield raw.decode("utf-8", "replace")
            at = align8(at + VALUE_HEADER.size + len(raw))
    finally:
        reader.close()
