"""The messages between the sandbox's processes: plain data as JSON, after its length.

Lists that begin with a letter stand for all types that JSON lacks: ["t", 1, 2] is a tuple. ``decode`` returns only
exact built-in types, whatever was sent. Messages hold no JSON objects, and containers are filled item by item, so that
an alarm can interrupt a peer's millions of colliding hashes.
"""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

HEAD = struct.Struct("!I")
REPLY_BYTES = 1 << 20
"""Most bytes that untrusted code may send in one message."""
TRUSTED_BYTES = 1 << 28


class Gone(BaseException):
    """The peer has closed or broken the protocol. A BaseException, so that no ``except Exception`` of a test swallows
    it."""


class Late(BaseException):
    """The deadline has passed."""


class Full(BaseException):
    """The machine has no process left, which is not the fault of any program."""


def send(sock: socket.socket, message: Any, cap: int = TRUSTED_BYTES) -> None:
    """Send one message. Raises OverflowError if it is longer than ``cap`` bytes, Gone if the peer has closed, Late at
    the socket's timeout."""
    raw = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    if len(raw) > cap:
        raise OverflowError(f"a value of {len(raw)} bytes on the wire; at most {cap} pass")
    try:
        sock.sendall(HEAD.pack(len(raw)) + raw)
    except TimeoutError:
        raise Late from None
    except OSError as error:
        raise Gone(str(error)) from None


def receive(sock: socket.socket, cap: int = TRUSTED_BYTES, until: float | None = None) -> Any:
    """Receive one message. until: monotonic time of the deadline. Raises Gone if the peer has closed or sent no valid
    message, Late past the deadline."""
    (length,) = HEAD.unpack(_exactly(sock, HEAD.size, until))
    if length > cap:
        raise Gone(f"a message of {length} bytes; at most {cap} pass")
    try:
        return json.loads(_exactly(sock, length, until))
    except (ValueError, RecursionError) as error:
        raise Gone(f"not a message: {error}") from None


def _exactly(sock: socket.socket, count: int, until: float | None) -> bytes:
    chunks = bytearray()
    poller = select.poll()  # select(2) knows no descriptor above 1023
    poller.register(sock, select.POLLIN)
    while len(chunks) < count:
        wait = None if until is None else max(0.0, until - time.monotonic()) * 1000
        if not poller.poll(wait):
            raise Late
        try:
            chunk = sock.recv(count - len(chunks))
        except OSError as error:
            raise Gone(str(error)) from None
        if not chunk:
            raise Gone("closed")
        chunks += chunk
    return bytes(chunks)


def encode(value: Any, other: Callable[[Any], Any]) -> Any:
    """Return the JSON of a value; a subclass becomes its plain type. other: returns the JSON of an object that is no
    plain data, or raises."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else ["i", hex(value)]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else ["f", float.__repr__(value)]
    if isinstance(value, dict):
        return ["d", *(encode(part, other) for item in dict.items(value) for part in item)]
    for letter, kind in _SERIES.items():
        if isinstance(value, kind):
            return [letter, *(encode(part, other) for part in kind.__iter__(value))]
    if isinstance(value, complex):
        return ["c", encode(value.real, other), encode(value.imag, other)]
    for letter, kind in _BYTES.items():
        if isinstance(value, kind):
            return [letter, kind.hex(value)]
    if isinstance(value, range):
        return ["r", *(encode(part, other) for part in (value.start, value.stop, value.step))]
    if isinstance(value, type) and value in TYPES.values():
        return ["T", value.__name__]
    return other(value)


_SERIES: dict[str, Any] = {"l": list, "t": tuple, "s": set, "z": frozenset, "q": deque}
_BYTES: dict[str, Any] = {"b": bytes, "y": bytearray}
TYPES = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict)}
"""The classes that can be sent as values, by name."""


def decode(value: Any, other: Callable[[str, list[Any]], Any]) -> Any:
    """Return the value of ``encode``'s JSON. other: returns the object for any other letter, given the parts after it.
    Raises Gone for invalid JSON of that form."""
    if not isinstance(value, list):
        if isinstance(value, dict):
            raise Gone("a JSON object")
        return value
    try:
        return _decoded(value[0], value[1:], other)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise Gone(f"nonsense: {error}") from None


def _decoded(letter: str, parts: list[Any], other: Callable[[str, list[Any]], Any]) -> Any:
    if letter == "i":
        return int(parts[0], 16)
    if letter == "f":
        return float(parts[0])
    if letter in _BYTES:
        return _BYTES[letter](bytes.fromhex(parts[0]))
    if letter == "T":
        return TYPES[parts[0]]
    if letter not in {*"ltszqdcr"}:
        return other(letter, parts)
    items = [decode(part, other) for part in parts]
    if letter == "c":
        return complex(float(items[0]), float(items[1]))
    if letter == "r":
        return range(*items)
    if letter == "d":
        result = {}
        for key, item in zip(items[::2], items[1::2], strict=True):
            result[key] = item
        return result
    if letter in "sz":
        members = set()
        for item in items:
            members.add(item)  # one by one: see the module's docstring
        return frozenset(members) if letter == "z" else members
    return items if letter == "l" else _SERIES[letter](items)
