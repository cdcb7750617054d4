"""Logs as collectors export them: JSON objects, lists, API responses and tables."""

from __future__ import annotations

import csv
import io
import re
from operator import itemgetter
from typing import Any

import orjson

_TEXT_KEYS = (
    "log", "message", "msg", "text", "textPayload", "MESSAGE", "@message", "line", "body",
    "content", "raw", "_raw", "event",
)  # fmt: skip
_INNER_KEYS = ("jsonPayload", "json", "fields", "data", "_source", "attributes", "result", "record")
_RANKS = ("rank", "global_rank")
_EXTRA_KEYS = ("extra", "context", "fields")
_TRACES = ("exc_info", "exception", "stack_trace", "traceback", "error.stack_trace", "exc_text")
"""Where loggers put a traceback separately from the message."""
_METADATA_KEYS = (
    ("kubernetes",), ("resource", "labels"), ("labels",), ("stream",), ("_source", "kubernetes"),
    ("fields",),
)  # fmt: skip
"""Where records describe their origin."""
_HOSTS = (
    "pod", "pod_name", "k8s_pod_name", "podName", "kubernetes.pod_name", "kubernetes.pod.name",
    "resource.labels.pod_name", "logStreamName", "@logStream", "hostname", "host", "host.name",
)  # fmt: skip
_NOT_IN_NAMES = re.compile(r"[^\w.\-]+")
_LONGEST_HOST = 120
_TIMES = (
    "timestamp", "@timestamp", "time", "Time", "ts", "date", "Date", "receiveTimestamp", "asctime",
)  # fmt: skip
_FEW = 50
_LONGEST_HEADING = 2000
_COLUMN = re.compile(r"[@\w][\w.@/\-]{0,80}")
_EVENTS = ("events", "entries", "logs", "items")
"""Keys that hold the records of an export that is a single object."""

_BY_COLUMN = {name.lower(): name for name in (*_TEXT_KEYS, *_HOSTS, *_TIMES, *_RANKS, "labels")}
"""Canonical column names by their lower-case form; the spelling of headings varies."""


def log_text(record: object) -> str | None:
    """The message of one exported log record, prefixed by its pod or host and its rank, if stated.

    None for anything else, including an object that holds a dump.
    """
    if not isinstance(record, dict):
        return None
    text = _text(record)
    host = _host(record) if text is not None else ""
    return f"[pod/{host}/-] {text}" if host else text


def _text(record: dict[str, Any]) -> str | None:
    if "entries" in record or "profiling_name" in record:
        return None
    found = next((t for key in _TEXT_KEYS if (t := _as_text(record.get(key))) is not None), None)
    if found is None:
        inner = next(
            (record[key] for key in _INNER_KEYS if isinstance(record.get(key), dict)), None
        )
        return None if inner is None else _text(inner)
    rank = _rank(record)
    text: str = "\n".join((found.rstrip("\n"), *_traces(record)))
    return text if rank is None else f"[RANK {rank}] {text}"


def _as_text(value: object) -> str | None:
    """A message; journald writes one that is not printable (colours) as a list of bytes."""
    if isinstance(value, str):
        return value
    if not (isinstance(value, list) and value and all(type(byte) is int for byte in value)):
        return None
    try:
        return bytes(value).decode("utf-8", "replace")
    except ValueError:  # numbers, but no bytes
        return None


def _rank(record: dict[str, Any]) -> int | None:
    """The rank that a record states, directly or among the fields added by its logger."""
    inner = record.get("record")
    added = inner.get("extra") if isinstance(inner, dict) else None
    for place in (record, *(record.get(key) for key in _EXTRA_KEYS), added):
        stated = (place.get(key) for key in _RANKS) if isinstance(place, dict) else ()
        for rank in stated:
            digits = str(rank) if type(rank) in (int, str) else ""
            if digits.isascii() and digits.isdecimal() and len(digits) <= 7:
                return int(digits)
    return None


def _host(record: dict[str, Any]) -> str:
    """The pod, else the host, that a record states, in a form fit for a prefix; empty if none."""
    places = [record]
    for keys in _METADATA_KEYS:
        inner: Any = record
        for key in keys:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            places.append(inner)
    if isinstance(record.get("host"), dict):
        places.append({"host": record["host"].get("name")})
    stated = (place.get(key) for key in _HOSTS for place in places)
    name = next((value for value in stated if isinstance(value, str) and value), "")
    return _NOT_IN_NAMES.sub("-", name)[:_LONGEST_HOST]


def _traces(record: dict[str, object]) -> list[str]:
    """Tracebacks that a record holds separately from its message."""
    error = record.get("error")
    own = [record.get(key) for key in _TRACES]
    own += [error.get(key) for key in _TRACES] if isinstance(error, dict) else []
    return [text.rstrip("\n") for text in own if isinstance(text, str) and "Traceback" in text]


def log_records(document: object) -> list[Any]:
    """The records of a log exported as one object or list; empty for anything else."""
    if isinstance(document, dict):
        lists = (document.get(key) for key in _EVENTS)
        records = next((found for found in lists if isinstance(found, list) and found), [])
        records = _loki_records(document) or records
    else:
        records = document if isinstance(document, list) else []
    few = records[:_FEW]
    is_log = sum(log_text(record) is not None for record in few) * 2 > len(few)
    return oldest_first(records) if is_log else []


def oldest_first(records: list[Any]) -> list[Any]:
    """The records, oldest first; many viewers show and export the newest first."""
    first, last = (_time(record) for record in (records[0], records[-1])) if records else ("", "")
    newest_first = first and last and len(first) == len(last) and first > last
    return records[::-1] if newest_first else records


def _time(record: object) -> str:
    stamps = (record.get(key) for key in _TIMES) if isinstance(record, dict) else ()
    found = next((value for value in stamps if isinstance(value, str | int)), "")
    return str(found)


def _loki_records(document: dict[str, Any]) -> list[Any]:
    """The records of Loki's response, which has lines with their times per stream."""
    data = document.get("data")
    streams = data.get("result") if isinstance(data, dict) else None
    found = [
        (str(pair[0]), pair[1], stream.get("stream"))
        for stream in (streams if isinstance(streams, list) else ())
        if isinstance(stream, dict) and isinstance(stream.get("values"), list)
        for pair in stream["values"]
        if isinstance(pair, list) and len(pair) > 1 and isinstance(pair[1], str)
    ]
    found.sort(key=itemgetter(0))
    return [{"line": line, "stream": labels} for _, line, labels in found]


def columns_of_csv(head: bytes) -> tuple[str, ...]:
    """The columns of a log exported as a table; empty for any other text."""
    line = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    if len(line) > _LONGEST_HEADING or "," not in line or "\r" in line:
        return ()
    columns = tuple(name.strip() for name in next(csv.reader([line]), []))
    if len(columns) < 2 or not all(_COLUMN.fullmatch(name) for name in columns):
        return ()
    known = tuple(_BY_COLUMN.get(name.lower(), name) for name in columns)
    return known if any(name in _TEXT_KEYS for name in known) else ()


def records_of_csv(columns: tuple[str, ...], text: str) -> list[dict[str, Any]]:
    """The rows of such a table, oldest first."""
    rows = csv.reader(io.StringIO(text, newline=""))
    next(rows, None)
    found = []
    try:
        for row in rows:
            record: dict[str, Any] = dict(zip(columns, row, strict=False))
            if record.get("labels", "").startswith("{"):
                record["labels"] = orjson.loads(record["labels"])
            found.append(record)
    except (csv.Error, orjson.JSONDecodeError):
        pass  # keep the rows before the damage
    return oldest_first(found)
