"""The process that runs the tests. The code under test is in another process, the guest, reached by a socket.

Messages to the trainer: ["loaded"] after each guest's start and after the opening, ["test", index, kind, error,
message, line] for each test, in order, ["again"] when a guest is replaced, ["fault", text] if the trusted part does not
run, ["full", text] if the machine has no process left for a guest.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from . import wire
from .opaque import Called, Lazy, Opaque, mark

LIVES = 3
"""Guests that may die before a program's remaining tests are given up (the paper stops after three time-outs); also the
default time limit of a whole program, in multiples of ``timeout``."""
MESSAGE_LENGTH = 300
_LINES = 1_000_000
Outcome = tuple[str, str | None, str, int | None]
"""(kind, error, message, line) of a ``Verdict``."""
PASSED: Outcome = ("passed", None, "", None)
SKIPPED: Outcome = ("skipped", None, "an earlier test did not pass", None)
_FORBIDDEN = {errno.EPERM, errno.EACCES, errno.EROFS, errno.ENETUNREACH, errno.ENETDOWN}
_REPORT = "coevolve_report"


class Left(BaseException):
    """The solution raised an exception that ``except Exception`` does not catch, such as SystemExit."""


class Judge:
    """The judge of one case. start: starts a guest and returns its socket. stop: ends the guest at once ("stop"), or
    first waits a moment for it to end by itself ("look"), and returns how it ended, a kind.
    """

    def __init__(self, program: dict[str, Any], start: Callable[[], socket.socket], stop: Callable[[str], str]) -> None:
        self.program, self.start, self.stop = program, start, stop
        self.timeout = float(program["timeout"])
        self.left = float(program["seconds"])
        self.until = 0.0  # deadline of the current attempt, monotonic
        self.armed = False
        self.lost = ""  # how the guest was lost, a kind; "" while it lives
        self.loaded = False
        self.number = 0  # of the newest call
        self.sock: socket.socket | None = None
        self.space: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
        self.names = {*program["names"]} - {*dir(builtins)}  # the guest may be asked for these, and the entry

    def run(self, tell: Callable[[list[Any]], None]) -> None:
        """Judge every test, reporting to the trainer by ``tell``."""
        signal.signal(signal.SIGALRM, self._alarm)
        try:
            self._execute(self.program["prelude"])
        except Exception as error:  # noqa: BLE001 - trusted code that fails is the caller's mistake: reported
            return tell(["fault", f"{type(error).__name__}: {error}"])
        self.names -= _exported(self.program["stars"])
        self.space |= {name: sys.modules[name] for name in self._modules()}
        self.names -= self.space.keys()
        final = self._guest()
        tell(["loaded"])  # the trainer's deadline runs from one message to the next
        if final == PASSED:
            final = self._attempt(partial(self._execute, self.program["opening"]))
            tell(["loaded"])
        lives = LIVES
        for index, step in enumerate(self.program["steps"]):
            if final != PASSED:  # no further test runs
                tell(["test", index, *final])
                continue
            outcome = self._attempt(partial(self._execute, step))
            tell(["test", index, *outcome])
            if self.program["stop_at_failure"] and outcome != PASSED:
                final = SKIPPED
            elif self.lost:
                lives -= 1
                tell(["again"])
                final = self._guest() if lives and self.left > 0 else (self.lost, None, "given up", None)
                tell(["loaded"])
        return None

    def call(self, what: list[Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Have the guest call one of its objects. Its exceptions are raised here, as their nearest built-in class."""
        self.number += 1
        values = [wire.encode(argument, _back) for argument in arguments]
        named = [[name, wire.encode(value, _back)] for name, value in keywords.items()]
        reply = self._exchange(["call", self.number, what, values, named])
        value: Any = None
        error: BaseException | None = None
        try:
            kind, number, *rest = reply
            if (kind, number) == ("raised", self.number):
                error = _exception(*rest)
                if what[0] != "x" and isinstance(error, StopIteration | StopAsyncIteration):
                    error = _stopped(error)
            elif (kind, number) == ("value", self.number):
                value = wire.decode(rest[0], self._lent)
                if value is None:
                    _write_back({**dict(enumerate(arguments)), **keywords}, rest[1], self._lent)
            else:
                raise ValueError(kind)
        except (wire.Gone, ValueError, TypeError, LookupError):  # the reply breaks the protocol
            self._lose("crashed")
        if error is not None:
            raise error
        return value

    def _guest(self) -> Outcome:
        """Start a guest and load the code. Raises wire.Full if there is no process for it: not the code's fault."""
        self.sock, self.lost = self.start(), ""
        return self._attempt(self._load)

    def _load(self) -> None:
        """Have the guest load the code. Its names are bound once: a later guest answers to the same names."""
        entry = self.program["entry"]
        reply = self._exchange(["load", self.program["code"], self.program["setup"], entry, sorted(self.names)])
        found: dict[str, Any] = {}
        error: BaseException | None = None
        try:
            kind, kept, plain = reply
            if kind == "raised":
                error = _exception(plain)
            else:
                found |= {name: Called(self, ["n", name], name) for name in kept if name in self.names}
                found |= {name: wire.decode(value, self._lent) for name, value in plain if name in self.names}
        except (wire.Gone, ValueError, TypeError, LookupError):  # the reply breaks the protocol
            self._lose("crashed")
        if error is not None:
            raise error
        if not self.loaded:
            self.loaded = True
            self.space |= found
            self.space[entry] = self.space["candidate"] = Called(self, ["n", entry], entry)

    def _attempt(self, action: Callable[[], None]) -> Outcome:
        """Run an action within the time limit and return its outcome."""
        begin = time.monotonic()
        allowed = max(0.0, min(self.timeout, self.left))
        self.until = begin + allowed
        try:
            try:
                self.armed = True
                signal.setitimer(signal.ITIMER_REAL, allowed + 0.1, 0.1)
                action()
                if time.monotonic() > self.until:  # a bare ``except`` of the test has swallowed Late
                    raise wire.Late
                outcome = PASSED
            finally:
                self.armed = False
        except wire.Late:
            outcome = ("timeout", None, "", None)
            if not self.lost:
                self.lost = "timeout"
                self.stop("stop")
        except BaseException as error:  # noqa: BLE001 - whatever ends a test decides its verdict
            outcome = _outcome(error)
        self.left -= time.monotonic() - begin
        return (self.lost, None, "", None) if self.lost else outcome

    def _exchange(self, request: list[Any]) -> list[Any]:
        if self.lost or self.sock is None:
            raise wire.Gone("the guest is gone")  # a test has swallowed an earlier Gone
        try:
            self.sock.settimeout(max(0.001, self.until - time.monotonic()))
            wire.send(self.sock, request)
            reply = wire.receive(self.sock, wire.REPLY_BYTES, self.until)
        except wire.Gone:
            self._lose("")
        return reply if isinstance(reply, list) else []

    def _lose(self, kind: str) -> NoReturn:
        """Record that the guest is lost and raise wire.Gone. kind: "" if it died, "crashed" after a wrong reply."""
        self.armed = False  # an alarm must not come between the question and its answer
        self.lost = kind or "crashed"
        how = self.stop("stop" if kind else "look")
        self.lost = kind or how
        raise wire.Gone(self.lost)

    def _lent(self, letter: str, parts: list[Any]) -> Opaque:
        if type(parts[0]) is not int or parts[1] not in (True, False, None):
            raise ValueError(letter)
        return {"g": Lazy, "h": Opaque, "k": Called}[letter](self, ["h", parts[0]], truth=parts[1])

    def _modules(self) -> list[str]:
        """Return the loaded standard modules that the tests name but do not import."""
        names = (name for name in self.names if name not in self.space)
        return [name for name in names if name in sys.modules and name in sys.stdlib_module_names]

    def _execute(self, source: str) -> None:
        exec(compile(source, "<tests>", "exec", dont_inherit=True), self.space)

    def _alarm(self, *_: object) -> None:
        if self.armed:
            raise wire.Late


def _exported(modules: list[str]) -> set[str]:
    """Return the names that ``import *`` binds from these modules, as far as they can be imported."""
    found: dict[str, Any] = {}
    for module in modules:
        with contextlib.suppress(Exception):  # then the tests' own import fails and is reported
            exec(f"from {module} import *", found)
    return {*found}


def _back(value: Any) -> list[Any]:
    """Return the JSON of a stand-in that goes back to the solution; any other object is a TypeError."""
    if isinstance(value, Opaque):
        return mark(value)
    raise TypeError(f"a test passes a {type(value).__name__}; only plain data goes to the solution")


def _write_back(given: dict[Any, Any], changed: list[Any], other: Callable[[str, list[Any]], Any]) -> None:
    for place, raw in changed:
        old, new = given[place], wire.decode(raw, other)
        if type(old) is not type(new) or not isinstance(old, (list, dict, set, bytearray)):
            raise wire.Gone("another type")
        old.clear()
        (old.extend if isinstance(old, (list, bytearray)) else old.update)(new)


def _exception(report: Any) -> BaseException:
    """Return the exception that a guest reports, as its nearest built-in class, with the report attached."""
    names, message, line, number = report
    if not (names and isinstance(names, list) and (number is None or type(number) is int)):
        raise ValueError(names)
    names, message = [_text(name, 100) for name in names[:20]], _text(message, MESSAGE_LENGTH)
    kinds = (getattr(builtins, name, None) for name in names)
    kind = next((k for k in kinds if isinstance(k, type) and issubclass(k, Exception)), Left)
    if issubclass(kind, BaseExceptionGroup):
        kind = Exception
    error = kind.__new__(kind, message)
    error.args = (message,)
    setattr(error, _REPORT, (names, message, line if type(line) is int and 0 < line < _LINES else None, number))
    return error


def _stopped(error: BaseException) -> BaseException:
    """Turn a StopIteration of a call into a RuntimeError, so that it does not end a loop of the tests."""
    other = RuntimeError(*error.args)
    setattr(other, _REPORT, getattr(error, _REPORT))
    return other


def _text(value: Any, longest: int) -> str:
    """Return a value as shortened text that UTF-8 can encode, as it is written to notes and files."""
    return str(value)[:longest].encode("utf-8", "replace").decode()


def _outcome(error: BaseException) -> Outcome:
    names, message, line, number = getattr(error, _REPORT, None) or _own(error)
    kind = "error"
    if "MemoryError" in names:
        kind = "memory"
    elif "PermissionError" in names or ("OSError" in names and number in _FORBIDDEN):
        kind = "forbidden"
    elif isinstance(error, AssertionError) and not hasattr(error, _REPORT):
        kind = "failed"
    return kind, names[0], message, line


def _own(error: BaseException) -> tuple[list[str], str, None, int | None]:
    """Return the report of an exception that the tests themselves raised."""
    try:
        message = _text(error, MESSAGE_LENGTH)
    except Exception:  # noqa: BLE001 - a message that holds the solution's objects has no text
        message = ""
    return [kind.__name__ for kind in type(error).__mro__[:-1]], message, None, getattr(error, "errno", None)
