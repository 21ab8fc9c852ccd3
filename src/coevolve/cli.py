"""The command line program ``coevolve``: runs one command of ``coevolve.commands``.

Exit codes: 0 done, 1 an error of the machine or of coevolve (a full disk, a missing file or package, a bug), 2 an error
of the user (one line says what to change), 130 interrupted, 143 terminated. Errors are printed in one line;
``COEVOLVE_DEBUG=1`` shows the traceback.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

from coevolve import faults
from coevolve.commands import (
    advise,
    chat,
    completion,
    diagnose,
    doctor,
    evaluate,
    export,
    init,
    pretrain,
    recipes,
    report,
    reproduce,
    serve,
    sweep,
    train,
)
from coevolve.console import say

DEBUG = "COEVOLVE_DEBUG"

COMMANDS = (
    init,
    train,
    sweep,
    evaluate,
    advise,
    diagnose,
    report,
    reproduce,
    export,
    chat,
    serve,
    pretrain,
    recipes,
    doctor,
    completion,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser, commands = _parser()
    completion.complete(parser, commands)
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        parser.error("no command; `coevolve --help` lists them")
    if not words[0].startswith("-") and words[0] not in commands:
        parser.error(_no_command(words[0], commands))
    args, rest = parser.parse_known_args(words[:1] + as_overrides(words[1:], commands.get(words[0])))
    if wrong := _recipe_is_late(words[0], args, rest):
        say(f"error: {wrong}", error=True)
        return 2
    stray = [word for word in rest if word.startswith("-") or "=" not in word or not hasattr(args, "overrides")]
    if stray:
        parser.error(_no_argument(stray[0], words[0], commands.get(words[0], parser)))
    args.overrides = [*getattr(args, "overrides", ()), *rest]  # argparse stops collecting at the first option
    command: Callable[[argparse.Namespace], None] = args.command
    with warnings.catch_warnings(), faults.signals():
        warnings.showwarning, threading.excepthook = _warn, _thread_ended
        try:
            command(args)
            if sys.stdout is not None:  # closed from the start (``>&-``)
                sys.stdout.flush()
        except BaseException as error:
            unread = _unread()
            if os.environ.get(DEBUG) and not faults.is_interrupt(error):
                raise
            if unread and isinstance(error, BrokenPipeError):
                return 128 + signal.SIGPIPE
            text, code = verdict(error)
            say(faults.one_line(text), error=True)
            return code
        finally:
            threading.excepthook = threading.__excepthook__
    return 0


def _no_command(word: str, commands: Iterable[str]) -> str:
    """Return the message for an unknown command."""
    from coevolve.names import did_you_mean

    return f"no command {word!r}{did_you_mean(word, commands)}; `coevolve --help` lists them"


def _no_argument(word: str, command: str, parser: argparse.ArgumentParser) -> str:
    """Return the message for an unknown argument of a command."""
    from coevolve.names import did_you_mean

    options = [option for action in parser._actions for option in action.option_strings]
    return f"unknown argument {word!r}{did_you_mean(word, options)}; `coevolve {command} --help` lists them"


def _recipe_is_late(command: str, args: argparse.Namespace, rest: Sequence[str]) -> str:
    """Return the message for an override that stands in the place of the recipe; empty if none does."""
    first = str(getattr(args, "recipe", None) or getattr(args, "run", ""))
    after = [*getattr(args, "overrides", ()), *rest]
    late = [word for word in after if "=" not in word and not word.startswith("-")]
    if "=" not in first or os.path.exists(first) or not late:
        return ""
    after.remove(late[0])
    return f"the recipe comes first: coevolve {command} {' '.join([late[0], first, *after])}"


def as_overrides(words: Sequence[str], command: argparse.ArgumentParser | None) -> list[str]:
    """Rewrite ``--key value`` and ``--key=value`` to ``key=value``, if the command takes overrides and has no such
    option."""
    actions = [] if command is None else command._actions
    if not any(action.dest == "overrides" for action in actions):
        return list(words)
    options = [one for action in actions for one in action.option_strings]
    made, left = [], list(words)
    while left:
        word = left.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or any(option.startswith(f"--{key}") for option in options):
            made.append(word)
        elif not equals and left and not left[0].startswith("--"):
            made.append(f"{key}={left.pop(0)}")
        else:
            made.append(f"{key}={value}" if equals else word)
    return made


def verdict(error: BaseException) -> tuple[str, int]:
    """Return the message and the exit code of an error that ends a command: 128 + the signal of an interrupt, 1 for a
    shortage, OSError, ImportError or a fault of coevolve, 2 for ValueError and other errors of user code."""
    if faults.is_interrupt(error):
        return str(error) or "stopped", 128 + getattr(error, "number", signal.SIGINT)
    if line := faults.lacking(error):
        return f"error: {line}", 1
    if isinstance(error, OSError | ImportError):
        return f"error: {error}", 1
    if isinstance(error, ValueError):
        return f"error: {error}", 2
    if faults.user_line(error):
        return f"error: {faults.raised(error)}", 2
    return f"error: {faults.raised(error)}; this is a fault of coevolve; {DEBUG}=1 shows where", 1


def _unread() -> bool:
    """Return whether standard output is a pipe whose reader has ended (``| head``); if so, discard further output."""
    try:
        number = sys.stdout.fileno()
        poll = select.poll()
        poll.register(number, 0)
        if not any(event & select.POLLERR for _, event in poll.poll(0)):
            return False
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    except (AttributeError, OSError, ValueError):  # no stdout, no file, or no poll on this system
        return False
    return True


def _thread_ended(args: threading.ExceptHookArgs) -> None:
    """Print one line for an error that ended a thread of user code."""
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread else "?"
        say(f"warning: the thread {name} ended: {faults.raised(args.exc_value)}", error=True)


def _warn(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
    """Print a warning in one line, without its source line."""
    say(f"warning: {faults.one_line(message)}", error=True)


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and the parsers of its commands by name."""
    parser = argparse.ArgumentParser(prog="coevolve", description="Fine-tune several language models together.")
    parser.add_argument("--version", action="version", version=f"coevolve {version('coevolve')}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for module in COMMANDS:
        module.add(commands)
    return parser, commands.choices


if __name__ == "__main__":
    sys.exit(main())
