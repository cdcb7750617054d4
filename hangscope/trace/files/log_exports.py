"""Logs as collectors export them: objects, lists, answers of an API, tables."""

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
_ADDED = ("extra", "context", "fields")
_TRACES = ("exc_info", "exception", "stack_trace", "traceback", "error.stack_trace", "exc_text")
"""Where loggers put a traceback beside the message."""
_ABOUT = (
    ("kubernetes",), ("resource", "labels"), ("labels",), ("stream",), ("_source", "kubernetes"),
    ("fields",),
)  # fmt: skip
"""Where records say of what they are."""
_HOSTS = (
    "pod", "pod_name", "k8s_pod_name", "podName", "kubernetes.pod_name", "kubernetes.pod.name",
    "resource.labels.pod_name", "logStreamName", "@logStream", "hostname", "host", "host.name",
)  # fmt: skip
_NO_NAME = re.compile(r"[^\w.\-]+")
_LONGEST_HOST = 120
_TIMES = (
    "timestamp", "@timestamp", "time", "Time", "ts", "date", "Date", "receiveTimestamp", "asctime",
)  # fmt: skip
_FEW = 50
_LONGEST_HEADING = 2000
_COLUMN = re.compile(r"[@\w][\w.@/\-]{0,80}")
_EVENTS = ("events", "entries", "logs", "items")
"""What holds the records of an export that is one object."""

_BY_COLUMN = {name.lower(): name for name in (*_TEXT_KEYS, *_HOSTS, *_TIMES, *_RANKS, "labels")}
"""The names of columns are written as somebody likes."""


def log_text(record: object) -> str | None:
    """The message of one record of an exported log, with its pod or host and its rank in front
    where those are stated.

    None for anything else; an object that holds a dump is none of these.
    """
    if not isinstance(record, dict):
        return None
    text = _text(record)
    host = _host(record) if text is not None else ""
    return f"[pod/{host}/-] {text}" if host else text


def _text(record: dict[str, Any]) -> str | None:
    if "entries" in record or "profiling_name" in record:
        return None
    found = next((record[key] for key in _TEXT_KEYS if isinstance(record.get(key), str)), None)
    if found is None:
        inner = next(
            (record[key] for key in _INNER_KEYS if isinstance(record.get(key), dict)), None
        )
        return None if inner is None else _text(inner)
    rank = _rank(record)
    text: str = "\n".join((found.rstrip("\n"), *_traces(record)))
    return text if rank is None else f"[RANK {rank}] {text}"


def _rank(record: dict[str, Any]) -> int | None:
    """The rank that a record states, itself or among what its logger was told to add."""
    inner = record.get("record")
    added = inner.get("extra") if isinstance(inner, dict) else None
    for place in (record, *(record.get(key) for key in _ADDED), added):
        stated = (place.get(key) for key in _RANKS) if isinstance(place, dict) else ()
        for rank in stated:
            digits = str(rank) if type(rank) in (int, str) else ""
            if digits.isascii() and digits.isdecimal() and len(digits) <= 7:
                return int(digits)
    return None


def _host(record: dict[str, Any]) -> str:
    """The pod, else the host, that a record states, as a prefix may hold it; empty where none."""
    places = [record]
    for keys in _ABOUT:
        inner: Any = record
        for key in keys:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            places.append(inner)
    if isinstance(record.get("host"), dict):
        places.append({"host": record["host"].get("name")})
    stated = (place.get(key) for key in _HOSTS for place in places)
    name = next((value for value in stated if isinstance(value, str) and value), "")
    return _NO_NAME.sub("-", name)[:_LONGEST_HOST]


def _traces(record: dict[str, object]) -> list[str]:
    """Tracebacks of a record that stand beside its message."""
    error = record.get("error")
    own = [record.get(key) for key in _TRACES]
    own += [error.get(key) for key in _TRACES] if isinstance(error, dict) else []
    return [text.rstrip("\n") for text in own if isinstance(text, str) and "Traceback" in text]


def log_records(document: object) -> list[Any]:
    """The records of a log that was exported as one object or list; none for anything else."""
    if isinstance(document, dict):
        lists = (document.get(key) for key in _EVENTS)
        records = next((found for found in lists if isinstance(found, list) and found), [])
        records = _of_streams(document) or records
    else:
        records = document if isinstance(document, list) else []
    few = records[:_FEW]
    is_log = sum(log_text(record) is not None for record in few) * 2 > len(few)
    return in_order(records) if is_log else []


def in_order(records: list[Any]) -> list[Any]:
    """The records from the oldest on: many a page shows, and exports, the newest first."""
    first, last = (_time(record) for record in (records[0], records[-1])) if records else ("", "")
    newest_first = first and last and len(first) == len(last) and first > last
    return records[::-1] if newest_first else records


def _time(record: object) -> str:
    told = (record.get(key) for key in _TIMES) if isinstance(record, dict) else ()
    found = next((value for value in told if isinstance(value, str | int)), "")
    return str(found)


def _of_streams(document: dict[str, Any]) -> list[Any]:
    """Loki's answer: lines with their times, by stream."""
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
    """The columns of a log that was exported as a table; none for any other text."""
    line = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    if len(line) > _LONGEST_HEADING or "," not in line or "\r" in line:
        return ()
    columns = tuple(name.strip() for name in next(csv.reader([line]), []))
    if len(columns) < 2 or not all(_COLUMN.fullmatch(name) for name in columns):
        return ()
    known = tuple(_BY_COLUMN.get(name.lower(), name) for name in columns)
    return known if any(name in _TEXT_KEYS for name in known) else ()


def records_of_csv(columns: tuple[str, ...], text: str) -> list[dict[str, Any]]:
    """The rows of such a table, from the oldest on."""
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
        pass  # what stands before the damage counts
    return in_order(found)
