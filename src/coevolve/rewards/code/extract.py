"""The code in a model's answer: in fenced blocks, bare, or between lines of prose."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from coevolve.rewards.code.syntax import first_line, is_idle, parse

_SPECIAL = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|<eos>")
"""What chat formats put around a turn. Code of an answer ends at the first one that has something before it, unless
the code parses with it only: it may stand in a string."""

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+.#-]*)[^`]*")
_PYTHON = {"", "python", "py", "python3", "py3"}
_CODE = re.compile(
    r"(async +)?def \w|def\w+ \w+ *\(|return\b|class \w+ *[:(]|import \w|from [\w.]+ import|@\w|\w+ *=(?!=)"
)
"""How a line starts that is meant as code, whether or not it parses."""

_CONTINUES = re.compile(r"\s|(else|elif|except|finally)\b|[)\]}]")
"""How a line starts that belongs to the statement above it, or an empty line."""

_JOINED = 5
"""Pieces that are tried as one statement, for strings and brackets with lines that start at the left."""
_BUDGET, _ATTEMPT = 300_000, 50
"""Characters given to the parser while prose is searched for code, about a second of work, and what an attempt adds."""


def extract(text: str) -> str:
    """The code of an answer, "" if there is none. Never raises, whatever the text.

    Line ends become ``\\n``, null bytes and a chat format's special tokens go, and what UTF-8 cannot hold becomes "?".
    A text that parses is taken as it is. Otherwise its fenced blocks are joined in their order: one that defines a
    function again, an improved version or the like, then replaces the earlier one as in any Python file, and one that
    goes on from an earlier one has it. Blocks tagged as another language count only if there are no others, and what a
    model thought, up to ``</think>``, only if nothing follows. Of blocks that do not parse together each counts if it
    does alone, or its longest run of lines that defines a function; before that, a fence at the end of a line of code
    counts as the end of its block. What does not parse even so is cut to such a run. Without one it is broken code
    rather than prose around code, and is returned from the first line that looks like code, for others to say what is
    wrong with it.
    """
    uncut = _clean(text)
    said = _said(uncut)
    text = next((part for part in _SPECIAL.split(said) if part.strip()), "")
    blocks = _blocks(text)
    fenced = "\n".join(blocks)
    for whole in dict.fromkeys((_dedent(uncut), _dedent(text), text.strip(), fenced, "\n".join(_blocks(said)))):
        if whole and (body := _body(whole)) is not None:
            return _shaved(whole, body)
    glued = "\n".join(_blocks(text, glued=True))
    if (body := _body(glued)) is not None and _defines(body):
        return _shaved(glued, body)
    alone = "\n".join(filter(None, (block if _body(block) is not None else _longest_run(block) for block in blocks)))
    if (body := _body(alone)) is not None and _defines(body):
        return _shaved(alone, body)
    return _longest_run(rest := fenced or _dedent(text)) or _broken(rest)


def _clean(text: str) -> str:
    text = text.encode("utf-8", "replace").decode().replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\0", "").replace("\ufeff", "")


def _said(text: str) -> str:
    """What stands behind the thoughts of a model that thinks aloud; all of it if nothing does."""
    behind = text.rpartition("</think>")[2]
    return behind if behind.strip() else text


def _dedent(text: str) -> str:
    """Without empty lines around it, and without the indentation that all lines share.

    A lone blank in front of the first line goes by itself: many tokenizers' first words begin with one.
    """
    text = text.strip("\n").rstrip()
    if re.match(r" \S", text):
        return text[1:]
    return textwrap.dedent(text) if text[:1] in (" ", "\t") else text


def _body(code: str) -> list[ast.stmt] | None:
    try:
        return parse(code).body
    except ValueError:
        return None


def _blocks(text: str, glued: bool = False) -> list[str]:
    """The contents of the fenced blocks, without their indentation; the last one may lack its end. glued: a block may
    end with a line of code that has the fence behind it, which may also be a line of a string."""
    found: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    held: list[str] = []
    for line in [*text.split("\n"), None]:
        if opened is None:
            opened, held = (_FENCE.fullmatch(line) if line is not None else None), []
        elif line is None or _closes(line, opened):
            found.append((opened["language"].lower(), textwrap.dedent("\n".join(held))))
            opened = None
        elif glued and line.rstrip().endswith(opened["fence"]):
            held.append(line.rstrip().removesuffix(opened["fence"]))
            found.append((opened["language"].lower(), textwrap.dedent("\n".join(held))))
            opened = None
        else:
            held.append(line)
    return [code for language, code in found if language in _PYTHON] or [code for _, code in found]


def _closes(line: str, opened: re.Match[str]) -> bool:
    """A fence as long as the one that opened the block. One much further in is a line of the code, of a docstring."""
    fence = opened["fence"]
    bare = line.strip()
    indent = len(line) - len(line.lstrip())
    return len(bare) >= len(fence) and set(bare) == {fence[0]} and indent <= len(opened["indent"]) + 3


def _shaved(code: str, body: list[ast.stmt]) -> str:
    """Without what does nothing at its ends: "Sure" is a Python expression, and "Note: this" an annotation."""
    active = [i for i, node in enumerate(body) if not is_idle(node)]
    if not active:
        return ""
    lines = code.split("\n")
    start = first_line(body[active[0]]) - 1 if active[0] else 0
    end = body[active[-1]].end_lineno if active[-1] + 1 < len(body) else len(lines)
    return "\n".join(lines[start:end]).strip("\n").rstrip()


def _longest_run(text: str) -> str:
    """The longest run of lines that parses and defines a function; empty if there is none."""
    runs = [(run, body) for run in _runs(text) if (body := _body(run)) is not None]
    defining = [_shaved(run, body) for run, body in runs if _defines(body)]
    return max(defining, key=lambda code: code.count("\n"), default="")


def _broken(text: str) -> str:
    """All from the first line that looks like code."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if _CODE.match(line)), len(lines))
    return "\n".join(lines[start:]).rstrip()


def _defines(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in body)


def _runs(text: str) -> Iterator[str]:
    """Maximal runs of lines that parse."""
    run: list[str] = []
    for statement in [*_statements(text), None]:
        if statement is not None:
            run.append(statement)
        elif run:
            yield "\n".join(run)
            run = []


def _statements(text: str) -> Iterator[str | None]:
    """Lines that parse, or None for a piece that starts no statement."""
    pieces = _pieces(text)
    budget = _BUDGET
    i = 0
    while i < len(pieces):
        found, taken = None, 1
        for count in range(1, min(_JOINED, len(pieces) - i) + 1):
            lines = "\n".join(pieces[i : i + count])
            budget -= len(lines) + _ATTEMPT
            if budget < 0:
                return
            if _body(lines) is not None:
                found, taken = lines, count
                break
        yield found
        i += taken


def _pieces(text: str) -> list[str]:
    """The lines, each with those that follow it further in: a function with its body."""
    pieces: list[list[str]] = []
    for line in text.split("\n"):
        if pieces and (not line or _CONTINUES.match(line) or pieces[-1][-1].startswith("@")):
            pieces[-1].append(line)
        else:
            pieces.append([line])
    return ["\n".join(piece) for piece in pieces]
