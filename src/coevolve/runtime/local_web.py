"""A web server on this machine: its thread, its handlers, and the check that a request may be answered."""

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
"""The address at which only programs on this machine reach a server."""

_NAMES = (LOOPBACK, "localhost", "[::1]")
_HTTP = 80  # the port that browsers leave out of the address


class Server(ThreadingHTTPServer):
    """A server that prints nothing for a broken connection, and one line for any other error."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, ConnectionError | TimeoutError):
            say(f"error: {raised(error)}", error=True)


class Handler(BaseHTTPRequestHandler):
    """A request handler that logs nothing: requests are private, and their lines would bury the printed address."""

    def answer(self, status: int, body: bytes, kind: str) -> None:
        """Send the whole answer, marked as not to be cached."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing: requests are not logged."""


@contextmanager
def answering(server: ThreadingHTTPServer) -> Iterator[str]:
    """Run the server in threads until the context is left; yield its address."""
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
    """Wait for Ctrl-C, print that the server stopped, and return."""
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        say("stopped")


def is_ours(headers: Message, port: int) -> bool:
    """Return whether a request to a loopback server names the server's own address as its host, and comes from no web
    page but the server's own.

    Another site in the user's browser can point its name at this machine (DNS rebinding) to read the answers; its
    requests still carry that name.
    """
    hosts, origins = headers.get_all("Host", []), headers.get_all("Origin", [])
    own = {f"{name}:{port}" for name in _NAMES} | (set(_NAMES) if port == _HTTP else set())
    asked = [host.lower() for host in hosts]
    from_us = {f"http://{host}" for host in own}
    return len(asked) == 1 and asked[0] in own and {origin.lower() for origin in origins} <= from_us
