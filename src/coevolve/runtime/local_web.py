"""A web server on this machine: a thread that answers, and who may ask."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from coevolve.console import say
from coevolve.faults import raised

LOOPBACK = "127.0.0.1"
"""Where only programs of this machine reach a server."""

_NAMES = (LOOPBACK, "localhost", "[::1]")
_HTTP = 80  # which browsers leave out of the address


class Server(ThreadingHTTPServer):
    """A server in whose terminal a connection that breaks says nothing, and another mistake one line."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, ConnectionError | TimeoutError):
            say(f"error: {raised(error)}", error=True)


class Handler(BaseHTTPRequestHandler):
    """What answers one request, and says nothing of it: what is asked is nobody else's, and would bury the address."""

    def answer(self, status: int, body: bytes, kind: str) -> None:
        """The whole answer, which whoever asked shall not keep."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def answering(server: ThreadingHTTPServer) -> Iterator[str]:
    """The server answers, in threads, until the context is left; yields its address."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        host, port = server.server_address[:2]
        yield f"http://{host!s}:{port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def until_interrupted() -> None:
    """Returns on Ctrl-C, having said so."""
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        say("stopped")


def is_ours(headers: Message, port: int) -> bool:
    """Whether a server on the loopback was asked by its own address, and by no page but its own.

    A site in the same browser can point its own name at this machine (DNS rebinding), and would read what is answered;
    its requests still carry its name.
    """
    hosts, origins = headers.get_all("Host", []), headers.get_all("Origin", [])
    own = {f"{name}:{port}" for name in _NAMES} | (set(_NAMES) if port == _HTTP else set())
    asked = [host.lower() for host in hosts]
    from_us = {f"http://{host}" for host in own}
    return len(asked) == 1 and asked[0] in own and {origin.lower() for origin in origins} <= from_us
