"""Pages of torch's debug server with the answers of all ranks, saved by a browser or curl."""

from __future__ import annotations

import html
import re
from typing import Any

import orjson

_PAGE = re.compile(rb"\s*<(?:!doctype html|html)[^>]*>", re.I)
_HEADING = re.compile(rb"<h2>\s*Rank (\d{1,8}): [^<]*</h2>\s*<pre>", re.I)
_END = re.compile(rb"</pre>", re.I)
_OBJECT = re.compile(_HEADING.pattern + rb"\s*\{", re.I)


def is_page_of_dumps(head: bytes) -> bool:
    """Whether a file that begins so is such a page (``/fr_trace_json``), with an object on it."""
    return bool(_PAGE.match(head)) and bool(_OBJECT.search(head))


def dumps_on_page(data: bytes) -> list[dict[str, Any]] | None:
    """The JSON object that each rank answered, with its rank; None if this is no such page.

    A rank that did not answer, or whose answer is cut off, is left out.
    """
    if not _PAGE.match(data):
        return None
    found = []
    heading = _HEADING.search(data)
    while heading is not None and (end := _END.search(data, heading.end())) is not None:
        answer = data[heading.end() : end.start()].decode("utf-8", "replace")
        rank, heading = int(heading[1]), _HEADING.search(data, end.end())
        # A browser that saves the page writes ``send 0-&gt;1``; curl does not.
        text = html.unescape(answer)
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError:
            continue
        if isinstance(document, dict):
            found.append({**document, "rank": rank})
    return found or None
