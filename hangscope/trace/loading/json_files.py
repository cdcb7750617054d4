"""Reads JSON files: one dump, several, one per line or on a page, or an exported log."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from hangscope.trace.external_reports.py_spy import is_py_spy_dump, to_text
from hangscope.trace.external_reports.ras import is_ras, read_ras
from hangscope.trace.files.debug_pages import dumps_on_page
from hangscope.trace.files.log_exports import log_records, log_text
from hangscope.trace.files.sniff import Unreadable
from hangscope.trace.files.truncated_dumps import json_before_entries, without_entries
from hangscope.trace.flight_recorder.read import Origin, read_document
from hangscope.trace.model import Fragment

MAX_BYTES = 2 << 30
MAX_LITERAL = 64 << 20
"""Python's own parser needs many times the size of the text."""


def read_json(data: bytes, origin: Origin, file: Path | None = None) -> list[Fragment]:
    """Fragments of a JSON document, or of a file with one document per line.

    Raises
    ------
    Unreadable
        If it is not JSON, or JSON of another kind; the text says which.
    """
    if len(data) > MAX_BYTES:
        raise Unreadable("a JSON file larger than any dump")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        document = _in_other_form(data)
        if document is None and (head := _without_entries(data)) is not None:
            return read_document(head, replace(origin, truncated=True))
        if document is None:
            raise Unreadable(f"damaged or truncated JSON ({error.msg})") from None
    records = log_records(document)
    if records:
        return _read_text("\n".join(_texts(records)), origin, file)
    if is_py_spy_dump(document):
        return _read_text(to_text(document), origin, file)
    if isinstance(document, dict) and "message" in document:
        from hangscope.trace.external_reports.error_file import is_error_file, read_error_file

        if is_error_file(document):
            return read_error_file(document, origin.path, file)
    if is_ras(document):
        return read_ras(document, origin.path)
    return read_document(document, origin)


def _read_text(text: str, origin: Origin, file: Path | None) -> list[Fragment]:
    from hangscope.trace.job_log.read import read_job_log  # dumps need none of it

    data = text.encode("utf-8", "replace")
    return read_job_log(io.BytesIO(data), path=origin.path, file=file)


def _without_entries(data: bytes) -> dict[str, Any] | None:
    """What precedes the entries of a truncated dump; None if it is not one."""
    head = json_before_entries(data)
    try:
        return without_entries(orjson.loads(head)) if head is not None else None
    except orjson.JSONDecodeError:
        return None


def _in_other_form(data: bytes) -> Any:
    """A document that is not plain JSON: a page, Python's own spelling, one object per line."""
    document: Any = _with_commas(data) if b'"nccl_version"' in data[:4096] else None
    if document is None:
        document = dumps_on_page(data)
    if document is None and data.lstrip()[:2] != b'{"':
        document = _python_literal(data)
    return _json_lines(data) if document is None else document


_COMMA = re.compile(rb'(["\d\]}el])(\s+)(?="\w+":)')
"""Between the end of one value and the next key."""


def _with_commas(data: bytes) -> Any:
    """A report of NCCL's RAS, which leaves out a comma in NCCL 2.28.9; None for anything else."""
    try:
        return orjson.loads(_COMMA.sub(rb"\1,\2", data))
    except orjson.JSONDecodeError:
        return None


def _python_literal(data: bytes) -> Any:
    """A dump printed by Python (``print(pickle.load(file))``); None for anything else."""
    if len(data) > MAX_LITERAL:
        return None
    try:
        return ast.literal_eval(data.decode("utf-8", "replace").strip())
    except (ValueError, SyntaxError, TypeError):
        return None


def _json_lines(data: bytes) -> list[Any] | None:
    """One document per line; None if most lines are not JSON."""
    found, bad = [], 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            found.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            bad += 1
            if bad > len(found) + 2:
                return None
    return found if len(found) > max(bad, 1) else None


def _texts(records: list[Any]) -> Iterator[str]:
    for record in records:
        text = log_text(record)
        if text is not None:  # the log reader splits records of several lines
            yield text if "\n" not in text else orjson.dumps({"log": text}).decode()
