"""Extraction of the code from a model's answer: from fenced blocks, bare code, or between lines of prose."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from coevolve.rewards.code.syntax import DEFINED, first_line, free, is_idle, parse, returns, stored

_SPECIAL = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|<eos>")
"""Special tokens that chat formats put around a turn. An answer ends at the first one with text before it, unless that
one stands in a string or a comment: in a closed block that parses, or in code that parses only with it."""

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
    4. The blocks that parse alone and, of each other block, the lines of code in it (see ``_between_prose``); joined,
       if that defines a function.
    5. The lines of code of the joined blocks, or of the text if it has no blocks.

    If these define no function, the first fence may close code that begins the answer: see ``_begun``. If that fails
    as well, the answer is broken code rather than prose around code: it is returned from the first line that looks like
    code on, so that the syntax error can be reported.

    A last function that the limit on tokens cut off is left out if it would replace a whole one (``_without_stump``).
    """
    uncut = _clean(text)
    said = _said(uncut)
    text = _turn(said)
    found = _ordinary(uncut, said, text)
    body = _body(found)
    code = found if _defines(body) or _names_lambda(body) else _parsing(_begun(text)) or found
    return _without_stump(code, uncut)


def _ordinary(uncut: str, said: str, text: str) -> str:
    blocks = _begun(text, tagged=True) or _blocks(text)
    fenced = "\n".join(blocks)
    for whole in dict.fromkeys((_dedent(uncut), _dedent(text), text.strip(), fenced, "\n".join(_blocks(said)))):
        if whole and (body := _body(whole)) is not None:
            return _shaved(whole, body)
    glued = "\n".join(_blocks(text, glued=True))
    if _defines(body := _body(glued)):
        return _shaved(glued, body)
    return _parsing(blocks) or _between_prose(rest := fenced or _dedent(text)) or _broken(rest)


def _parsing(blocks: Sequence[str]) -> str:
    """Return the blocks, of those that do not parse the lines of code, joined; "" if that defines no function."""
    code = "\n".join(filter(None, (block if _body(block) is not None else _between_prose(block) for block in blocks)))
    return _shaved(code, body) if _defines(body := _body(code)) else ""


def _clean(text: str) -> str:
    text = text.encode("utf-8", "replace").decode().replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\0", "").replace("\ufeff", "")


def _said(text: str) -> str:
    """Return the text after a reasoning model's last ``</think>``; the whole text if nothing follows."""
    behind = text.rpartition("</think>")[2]
    return behind if behind.strip() else text


def _turn(text: str) -> str:
    """Return the text up to the first special token that ends it; the tokens it begins with are left out."""
    held = [lines for _, code, lines in _fenced(text) if lines and _SPECIAL.search(code) and _body(code) is not None]
    start = 0
    for token in _SPECIAL.finditer(text):
        if not text[start : token.start()].strip():
            start = token.end()
        elif not held or not any(text.count("\n", 0, token.start()) in lines for lines in held):
            return text[start : token.start()]
    return text[start:]


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
    """Return the contents of the fenced blocks; those of another language only if there are no others."""
    found = [(language, code) for language, code, _ in _fenced(text, glued)]
    return [code for language, code in found if language in _PYTHON] or [code for _, code in found]


def _begun(text: str, tagged: bool = False) -> list[str]:
    """Return the blocks of a text that begins with code which its first fence closes; [] if that fence names a language
    or no function is defined before it. tagged: only if the next fence names one and there is no function between the
    two, so that the first can hardly open anything.
    """
    lines = text.split("\n")
    fences = [(i, found["language"]) for i, line in enumerate(lines) if (found := _FENCE.fullmatch(line))]
    if not fences or fences[0][1] or (tagged and not (fences[1:] and fences[1][1])):
        return []
    first = fences[0][0]
    if tagged and _between_prose("\n".join(lines[first + 1 : fences[1][0]])):
        return []
    before = "\n".join(lines[:first])
    return [before, *_blocks("\n".join(lines[first + 1 :]))] if _parsing([before]) else []


def _fenced(text: str, glued: bool = False) -> Iterator[tuple[str, str, range]]:
    """Yield (language, content, line numbers) of each fenced block, dedented; the last one may lack its closing fence,
    and then has no line numbers. glued: a fence at the end of a line of code also closes a block (though the line may
    belong to a string)."""
    opened: re.Match[str] | None = None
    held: list[str] = []
    for i, line in enumerate([*text.split("\n"), None]):
        if opened is None:
            opened, held = (_FENCE.fullmatch(line) if line is not None else None), []
            continue
        glues = glued and line is not None and line.rstrip().endswith(opened["fence"])
        ends = line is None or _closes(line, opened)
        if line is not None and not ends:
            held.append(line.rstrip().removesuffix(opened["fence"]) if glues else line)
        if ends or glues:
            lines = range(i - len(held), i) if line is not None else range(0)
            yield opened["language"].lower(), textwrap.dedent("\n".join(held)), lines
            opened = None


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


def _between_prose(text: str) -> str:
    """Return the lines of code in a text: the longest run of lines that parses and defines a function, and the runs
    that belong to it; "" if there is none.

    A run belongs to it if it sets a name that the others read (a helper, an import, a constant), or defines a function
    that reads theirs, and sets none of their names: that would be another version. What prose sets under the name of a
    builtin (``max = 5``) belongs to nothing.
    """
    runs = [(_shaved(run, body), body) for run in _runs(text) if (body := _body(run)) is not None]
    defining = [i for i, (_, body) in enumerate(runs) if _defines(body)]
    if not defining:
        return ""
    longest = max(defining, key=lambda i: runs[i][0].count("\n"))
    sets = [stored(body) for _, body in runs]
    reads = [set().union(*(free(node) for node in body)) - set(dir(builtins)) for _, body in runs]
    given, asked, kept = set(sets[longest]), set(reads[longest]), {longest}
    for i in [*range(len(runs)), *reversed(range(len(runs)))]:  # two passes find all but entangled ones
        if not sets[i] & given and (sets[i] & asked or (i in defining and reads[i] & given)):
            given |= sets[i]
            asked |= reads[i]
            kept.add(i)
    joined = "\n".join(runs[i][0] for i in sorted(kept))
    return joined if _body(joined) is not None else runs[longest][0]


def _broken(text: str) -> str:
    """Return the text from the first line that looks like code on."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if _CODE.match(line)), len(lines))
    return "\n".join(lines[start:]).rstrip()


def _without_stump(code: str, answer: str) -> str:
    """Return the code without a last function that ends the answer and is the beginning of an earlier one: a model that
    began again was cut off, and Python would take the stump for the function."""
    body = _body(code)
    last = body[-1] if body else None
    lines = code.split("\n")
    if body is None or not isinstance(last, ast.FunctionDef) or not answer.rstrip().endswith(lines[-1].strip()):
        return code
    stump = "\n".join(lines[first_line(last) - 1 :]).rstrip()
    whole = [one for one in body[:-1] if isinstance(one, ast.FunctionDef) and one.name == last.name and returns(one)]
    texts = ["\n".join(lines[first_line(one) - 1 : one.end_lineno]) for one in whole]
    again = any(len(text) > len(stump) and text.startswith(stump) for text in texts)
    empty = not returns(last) and not any(isinstance(node, ast.Call | ast.Raise) for node in ast.walk(last))
    if not again and not (whole and empty):
        return code
    return "\n".join(lines[: first_line(last) - 1]).rstrip()


def _defines(body: list[ast.stmt] | None) -> TypeGuard[list[ast.stmt]]:
    return any(isinstance(node, DEFINED) for node in body or ())


def _names_lambda(body: Sequence[ast.stmt] | None) -> bool:
    return any(
        isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda) for node in body or ()
    )


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
