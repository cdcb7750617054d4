"""A real web server that keeps what is posted to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def posts_to(
    status_of: Callable[[str], int], read: Callable[[bytes], T]
) -> Iterator[tuple[str, list[T]]]:
    """Its URL, and what it was sent, as ``read`` makes it; ``status_of`` answers for each path."""
    received: list[T] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(read(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status_of(self.path))
            self.end_headers()

        def log_message(self, *words: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()
