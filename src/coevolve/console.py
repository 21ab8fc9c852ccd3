"""The way to the terminal, for everything that Coevolve prints: what models and files say can neither steer it nor be
taken for markup.

Control characters could rename the window, rewrite lines or type; marks of direction show a text in another order than
it is. They become U+FFFD. ``[red]`` stays ``[red]``.
"""

from __future__ import annotations

import errno
import logging
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

WIDE = 120
"""Columns of a table where there is no terminal to ask; rich's 80 would cut names."""

_LINES = "\n\t"
_JOINERS = "\u200c\u200d"  # of letters and emoji: they only change how neighbours look


def printable(text: str) -> str:
    """The text without characters that a terminal would obey."""
    return "".join(c if _is_harmless(c) else "\N{REPLACEMENT CHARACTER}" for c in text)


def say(text: str, error: bool = False) -> None:
    """Print a line of plain text on standard output, or on standard error, at once."""
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


def console(piped: int | None = None, **options: Any) -> Console:
    """Standard output with tables, colours and live lines. piped: its width where it is no terminal.

    options: of rich's ``Console``.
    """
    made = _Console(markup=False, emoji=False, **options)
    if piped is not None and not made.is_terminal:
        made.width = piped
    return made


class Plain(logging.Formatter):
    """Notices as they may be printed."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Console(Console):
    """Replaces in every text that is drawn, however deep in a table; rich's own codes are in other segments."""

    def on_broken_pipe(self) -> None:
        """Nobody reads on (``| head``), which ``cli`` says; rich would raise SystemExit(1)."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output")

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def _is_harmless(c: str) -> bool:
    return c.isprintable() or c in _LINES or c in _JOINERS or unicodedata.category(c) == "Zs"
