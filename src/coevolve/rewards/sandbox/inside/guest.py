"""The process that runs the code under test: it loads the code, then answers calls. None of its replies is trusted.

Requests and replies are lists. ["load", code, setup, entry, names] -> ["loaded", the names that exist and do not hold
plain data, (name, value) pairs of those that do]; ["call", number, what, arguments, keywords] -> ["value", number,
value, (position or name, value) pairs of arguments that it changed in place]; either -> ["raised", number, report].
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
import types
from typing import Any

from . import wire

ANSWER = "<answer>"
MESSAGE_LENGTH = 500
_ABSENT = object()


class Guest:
    """The code's namespace, and the objects that the judge refers to by number."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.module = types.ModuleType("answer")
        self.lent: list[Any] = []

    def load(self, code: str, setup: str, entry: str, names: list[str]) -> list[Any]:
        """Run the code and the setup; return which of the names they define."""
        sys.modules["answer"] = self.module
        space = self.module.__dict__
        for text, file in ((code, ANSWER), (setup, "<setup>")):
            exec(compile(text.replace("\r\n", "\n"), file, "exec", dont_inherit=True), space)
        if entry not in space:
            raise NameError(f"name {entry!r} is not defined")
        kept, plain = [], []
        for name in names:
            value = space.get(name, _ABSENT)
            if value is _ABSENT:
                continue
            try:
                plain.append([name, wire.encode(value, _no_plain_data)])
            except (TypeError, RecursionError):
                kept.append(name)
        return ["loaded", kept, plain]

    def call(self, number: int, what: Any, arguments: list[Any], keywords: list[Any]) -> list[Any]:
        """Call a function or object; if it returns None, also send back arguments that it changed in place."""
        callee = self.found(what[0], what[1:])
        given = {**dict(enumerate(arguments)), **dict(keywords)}  # by position or name
        values = {place: wire.decode(value, self.found) for place, value in given.items()}
        result = callee(*(values[i] for i in range(len(arguments))), **{name: values[name] for name, _ in keywords})
        changed = []
        if result is None:
            for place, value in values.items():
                if isinstance(value, (list, dict, set, bytearray)):
                    now = wire.encode(value, self.lend)
                    if now != given[place]:
                        changed.append([place, now])
        return ["value", number, wire.encode(result, self.lend), changed]

    def found(self, letter: str, parts: list[Any]) -> Any:
        """Return the object that the judge refers to by name or number."""
        if letter == "n":
            return self.module.__dict__[parts[0]]
        if letter == "x":  # the next item of an iterator
            return lambda: next(self.lent[parts[0]])
        return self.lent[parts[0]]

    def lend(self, value: Any) -> list[Any]:
        """Keep an object that is no plain data, and return the JSON that stands for it."""
        self.lent.append(value)
        try:
            truth = bool(value)
        except Exception:  # noqa: BLE001 - __bool__ is the code's own
            truth = None
        letter = "g" if hasattr(type(value), "__next__") else "k" if callable(value) else "h"
        return [letter, len(self.lent) - 1, truth]


def serve(sock: socket.socket) -> None:
    """Answer requests until the judge closes the socket."""
    guest = Guest(sock)
    while True:
        request = wire.receive(sock)
        try:
            reply = (guest.load if request[0] == "load" else guest.call)(*request[1:])
            wire.send(sock, reply, wire.REPLY_BYTES)
        except wire.Gone:
            return
        except BaseException as error:  # noqa: BLE001 - whatever the code raised, SystemExit too, is reported
            wire.send(sock, ["raised", request[1] if request[0] == "call" else 0, report(error)], wire.REPLY_BYTES)


def report(error: BaseException) -> list[Any]:
    """Describe an exception: [names of its classes, message, line of the answer or None, errno or None]."""
    try:
        message = str(error)[:MESSAGE_LENGTH]
    except BaseException as failure:  # noqa: BLE001 - __str__ is the code's own
        message = f"<{type(failure).__name__} in __str__>"
    line = None
    if isinstance(error, SyntaxError):
        line = error.lineno if error.filename == ANSWER else None
        message = str(error.msg)[:MESSAGE_LENGTH]
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == ANSWER:
            line = number
    number_of = error.errno if isinstance(error, OSError) and isinstance(error.errno, int) else None
    names = [kind.__name__ for kind in type(error).__mro__[:-1]]
    return [names, str(message), line, number_of]


def _no_plain_data(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} stays with the solution")


def run(sock: socket.socket) -> None:
    """Run a guest process to its end."""
    try:
        serve(sock)
    finally:
        os._exit(0)
