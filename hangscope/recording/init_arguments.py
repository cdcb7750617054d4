"""Rank, world size and rendezvous that a call of ``init_process_group`` declares.

They may differ from the launcher's variables at the time torch was imported: programs set ``RANK``
and ``WORLD_SIZE`` themselves, pass their own numbers, or compute them wrongly. They are read before
the call, because a call that waits for ranks that do not exist never returns.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qs, urlsplit

from hangscope.ring.layout import MAX_RANK

_ARGUMENTS = ("backend", "init_method", "timeout", "world_size", "rank", "store")
"""The first parameters of ``torch.distributed.init_process_group`` in their order."""


class Declaration(NamedTuple):
    """What a call of ``init_process_group`` says about the calling process."""

    place: tuple[int, int] | None = None
    """Rank and world size; None if the call does not determine them."""
    rendezvous: str = ""
    """The rendezvous: ``tcp://host:port``, ``file:///path``, or the type of a store that no other
    process can reach. Empty if not known."""


def declaration(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], environ: Mapping[str, str]
) -> Declaration:
    """Evaluate the arguments of a call.

    As in torch: arguments take precedence over the URL (which must not hold both), and environment
    variables are read if the URL is ``env://`` or not given. A call that torch will reject declares
    nothing.

    Parameters
    ----------
    args, kwargs:
        The call's arguments.
    environ:
        The process's environment at the time of the call.
    """
    given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    if str(given.get("backend")).lower() == "mpi":
        return Declaration()  # the MPI runtime has its own ranks and rendezvous
    rank, world = _number(given.get("rank")), _number(given.get("world_size"))
    if given.get("store") is not None:
        return Declaration(_place(rank, world), _of_store(given["store"]))
    try:
        url = urlsplit(str(given.get("init_method") or "env://"))
        query = parse_qs(url.query)
    except ValueError:
        return Declaration()
    rank = _number(query.get("rank", [None])[-1]) if rank is None else rank
    world = _number(query.get("world_size", [None])[-1]) if world is None else world
    if url.scheme == "env":
        rank = _number(environ.get("RANK")) if rank is None else rank
        world = _number(environ.get("WORLD_SIZE")) if world is None else world
    return Declaration(_place(rank, world), _of_url(url, environ))


def _place(rank: int | None, world: int | None) -> tuple[int, int] | None:
    return (rank, world) if rank is not None and world else None


def _of_url(url: SplitResult, environ: Mapping[str, str]) -> str:
    if url.scheme == "env":
        host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
        return f"tcp://{host}:{port}" if host and port else ""
    if url.scheme == "tcp":
        return f"tcp://{url.netloc}"
    return f"file://{url.netloc}{url.path}" if url.scheme == "file" else ""


def _of_store(store: Any) -> str:
    for _ in range(8):  # unwrap stores that only prefix the keys of another
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            break
        store = inner
    kind = type(store).__name__
    host, port, path = (getattr(store, name, "") for name in ("host", "port", "path"))
    if kind == "TCPStore":
        return f"tcp://{host}:{port}" if host and port else ""
    if kind == "FileStore":
        return f"file://{path}" if path else ""
    return kind if kind == "HashStore" else ""


def _number(value: Any) -> int | None:
    """A valid rank or world size, else None; torch uses -1 for "not given"."""
    try:
        number = int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number <= MAX_RANK + 1 else None
