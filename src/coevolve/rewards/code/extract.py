"""Extraction of the code from a model's answer: from fenced blocks, bare code, or between lines of prose."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from coevolve.rewards.code.syntax import first_line, is_idle, parse

_SPECIAL = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|<eos>")
"""Special tokens that chat formats put around a turn. An answer's code ends at the first one with text before it,
unless the code parses only with the token, which may stand in a string."""

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+.#-]*)[^`]*")
_PYTHON = {"", "python", "py", "python3", "py3"}
_CODE = re.compile(
    r"(async +)?def \w|def\w+ \w+ *\(|return\b|class \w+ *[:(]|import \w|from [\w.]+ import|@\w|\w+ *=(?!=)"
)
"""The start of a line that is meant as code, whether or not it parses."""

_CONTINUES = re.compile(r"\s|(else|elif|except|finally)\b|[)\]}]")
"""The start of a line that continues the statement above it."""

_JOINED = 5
"""Most pieces that are tried as one statement, for strings and brackets with lines that are not indented."""
_BUDGET, _ATTEMPT = 300_000, 50
"""Most characters parsed while prose is searched for code, about a second of work; and the extra cost of an attempt."""


def extract(text: str) -> str:
    """Return the code of an answer, "" if there is none. Never raises, whatever the text.

    Line ends become ``\\n``, null bytes and special tokens of chat formats are removed, and characters that UTF-8
    cannot encode become "?". The following are tried in this order, and the first that parses is returned:

    1. The whole text.
    2. All fenced blocks joined in their order, so that a block that redefines a function replaces the earlier version,
       and a block that continues an earlier one has it. Blocks tagged as another language count only if there are no
       others, and a model's thoughts, up to ``</think>``, only if nothing follows.
    3. The same with a fence at the end of a line of code also closing its block, if that defines a function.
    4. The blocks that parse alone and, of each other block, its longest run of lines that defines a function; joined,
       if that defines a function.
    5. The longest such run of the joined blocks, or of the text if it has no blocks.

    If all fail, the answer is broken code rather than prose around code: it is returned from the first line that looks
    like code on, so that the syntax error can be reported.
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
    """Return the text after a reasoning model's last ``</think>``; the whole text if nothing follows."""
    behind = text.rpartition("</think>")[2]
    return behind if behind.strip() else text


def _dedent(text: str) -> str:
    """Return the text without surrounding empty lines and without the indentation that all lines share.

    A single blank before the first line is removed alone: many tokenizers' first words begin with one.
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
    """Return the contents of the fenced blocks, dedented; the last one may lack its closing fence. glued: a fence at
    the end of a line of code also closes a block (though the line may belong to a string)."""
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
    """Return whether a line is a fence at least as long as the opening one. A fence indented by over three blanks more
    is a line of the code, as in a docstring."""
    fence = opened["fence"]
    bare = line.strip()
    indent = len(line) - len(line.lstrip())
    return len(bare) >= len(fence) and set(bare) == {fence[0]} and indent <= len(opened["indent"]) + 3


def _shaved(code: str, body: list[ast.stmt]) -> str:
    """Return the code without idle statements at its ends: "Sure" is a Python expression, "Note: x" an annotation."""
    active = [i for i, node in enumerate(body) if not is_idle(node)]
    if not active:
        return ""
    lines = code.split("\n")
    start = first_line(body[active[0]]) - 1 if active[0] else 0
    end = body[active[-1]].end_lineno if active[-1] + 1 < len(body) else len(lines)
    return "\n".join(lines[start:end]).strip("\n").rstrip()


def _longest_run(text: str) -> str:
    """Return the longest run of lines that parses and defines a function; "" if there is none."""
    runs = [(run, body) for run in _runs(text) if (body := _body(run)) is not None]
    defining = [_shaved(run, body) for run, body in runs if _defines(body)]
    return max(defining, key=lambda code: code.count("\n"), default="")


def _broken(text: str) -> str:
    """Return the text from the first line that looks like code on."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if _CODE.match(line)), len(lines))
    return "\n".join(lines[start:]).rstrip()


def _defines(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in body)


def _runs(text: str) -> Iterator[str]:
    """Yield the maximal runs of lines that parse."""
    run: list[str] = []
    for statement in [*_statements(text), None]:
        if statement is not None:
            run.append(statement)
        elif run:
            yield "\n".join(run)
            run = []


def _statements(text: str) -> Iterator[str | None]:
    """Yield lines that parse as statements, and None for a piece that starts no statement."""
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
    """Split a text into lines, each with the lines that continue it: a function with its body."""
    pieces: list[list[str]] = []
    for line in text.split("\n"):
        if pieces and (not line or _CONTINUES.match(line) or pieces[-1][-1].startswith("@")):
            pieces[-1].append(line)
        else:
            pieces.append([line])
    return ["\n".join(piece) for piece in pieces]
