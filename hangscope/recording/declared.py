"""Which rank of how many a call of ``init_process_group`` declares this process to be.

What the launcher's variables said when torch was imported may be something else: programs set
``RANK`` and ``WORLD_SIZE`` themselves, pass numbers of their own, or compute them wrongly. Found
before the call, because a call that waits for ranks that do not exist never returns.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

_ARGUMENTS = ("backend", "init_method", "timeout", "world_size", "rank", "store")
"""Parameters of ``torch.distributed.init_process_group`` in their order, as far as they matter."""
_MOST = 1 << 20
"""No job has so many ranks: a number from there on is an accident, and readers make lists."""


def declared_place(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[int, int] | None:
    """Rank and world size that the call declares; None where it leaves them to somebody else.

    As in torch: what stands in the arguments counts before what stands in the URL (which must not
    hold both), and the variables are asked where the URL is ``env://`` or none is given. A call
    that torch is going to refuse declares nothing.

    Parameters
    ----------
    args, kwargs:
        The call's arguments.
    environ:
        The variables of the process at the time of the call.
    """
    given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    if str(given.get("backend")).lower() == "mpi":
        return None  # that runtime has numbers of its own
    rank, world = _number(given.get("rank")), _number(given.get("world_size"))
    if given.get("store") is None:
        url = given.get("init_method") or "env://"
        try:
            parts = urlsplit(str(url))
            query = parse_qs(parts.query)
        except ValueError:
            return None
        rank = _number(query.get("rank", [None])[-1]) if rank is None else rank
        world = _number(query.get("world_size", [None])[-1]) if world is None else world
        if parts.scheme == "env":
            rank = _number(environ.get("RANK")) if rank is None else rank
            world = _number(environ.get("WORLD_SIZE")) if world is None else world
    return None if rank is None or world is None or not world else (rank, world)


def meeting_point(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], environ: Mapping[str, str]
) -> str:
    """Where the call meets the other ranks: ``tcp://host:port``, ``file:///path``, ``HashStore``.

    Empty where that is not known. Parameters as for `declared_place`.
    """
    given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    if given.get("store") is not None:
        return _of_store(given["store"])
    url = str(given.get("init_method") or "env://")
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if parts.scheme == "env":
        host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
        return f"tcp://{host}:{port}" if host and port else ""
    if parts.scheme == "tcp":
        return f"tcp://{parts.netloc}"
    return f"file://{parts.netloc}{parts.path}" if parts.scheme == "file" else ""


def _of_store(store: Any) -> str:
    for _ in range(8):  # stores that only put something before the keys of another
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            break
        store = inner
    kind = type(store).__name__
    if kind == "TCPStore":
        return f"tcp://{store.host}:{store.port}"
    if kind == "FileStore":
        return f"file://{store.path}"
    return kind if kind == "HashStore" else ""


def _number(value: Any) -> int | None:
    """A number from 0 on; torch takes -1 for "not given"."""
    try:
        number = int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < _MOST else None
