"""Terminal output of Coevolve, in which texts of models and files act neither as control codes nor as markup.

Control characters could rename the window, rewrite lines or type; bidirectional marks show a text in another order.
Both become U+FFFD. ``[red]`` stays ``[red]``.
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
"""Width of a table without a terminal; rich's 80 columns would cut names."""

_LINES = "\n\t"
_JOINERS = "\u200c\u200d"  # of letters and emoji: harmless, they only join the characters beside them


def printable(text: str) -> str:
    """Return the text with control characters replaced by U+FFFD."""
    return "".join(c if _is_harmless(c) else "\N{REPLACEMENT CHARACTER}" for c in text)


def say(text: str, error: bool = False) -> None:
    """Print a line of plain text on standard output, or on standard error, at once."""
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


def console(piped: int | None = None, **options: Any) -> Console:
    """Return a rich console on standard output. piped: its width where that is no terminal.

    options: of rich's ``Console``.
    """
    made = _Console(markup=False, emoji=False, **options)
    if piped is not None and not made.is_terminal:
        made.width = piped
    return made


class Plain(logging.Formatter):
    """A log formatter that replaces control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Console(Console):
    """A console that replaces control characters in every text, also in tables; rich's own codes are kept."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, which ``cli`` handles (``| head``); rich would raise SystemExit(1)."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output")

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def _is_harmless(c: str) -> bool:
    return c.isprintable() or c in _LINES or c in _JOINERS or unicodedata.category(c) == "Zs"
