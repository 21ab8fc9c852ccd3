"""The program ``coevolve``: one command of ``coevolve.commands``, and how it ends.

Exit codes: 0 done, 1 the machine's fault (a full disk), 2 the user's (one line says what to change), 130 interrupted.
``COEVOLVE_DEBUG=1`` shows the traceback of an error.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from coevolve.commands import chat, diagnose, doctor, evaluate, export, pretrain, report, sweep, train
from coevolve.console import say

DEBUG = "COEVOLVE_DEBUG"

COMMANDS = (train, sweep, evaluate, diagnose, report, export, chat, pretrain, doctor)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    stray = [word for word in rest if word.startswith("-") or "=" not in word or not hasattr(args, "overrides")]
    if stray:
        parser.error(f"unknown argument {stray[0]!r}")
    args.overrides = [*getattr(args, "overrides", ()), *rest]  # argparse stops collecting at the first option
    command: Callable[[argparse.Namespace], None] = args.command
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            command(args)
    except KeyboardInterrupt as stop:
        return _complain(str(stop) or "stopped", 130)
    except OSError as error:
        full = "; free some space and try again, a training with --resume" if error.errno == errno.ENOSPC else ""
        return _complain(f"error: {error}{full}", 1, error)
    except (ValueError, TypeError) as error:
        return _complain(f"error: {error}", 2, error)
    return 0


def _warn(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
    """One line, without the code that it came from."""
    say(f"warning: {' '.join(str(message).split())}", error=True)


def _complain(text: str, code: int, error: BaseException | None = None) -> int:
    if error is not None and os.environ.get(DEBUG):
        raise error
    say(" ".join(text.split()), error=True)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="coevolve", description="Fine-tune several language models together.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for module in COMMANDS:
        module.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
