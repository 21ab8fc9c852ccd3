"""What every fuzz test shares: strange values, strange changes of good ones, and what may come of them."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from coevolve import cli

MORE = float(os.environ.get("COEVOLVE_FUZZ", "1"))
"""How many times as many inputs as usual; if not 1 they are others every time, or those of --hypothesis-seed."""

RECIPES = Path(__file__).parents[2] / "recipes"

CASES: Counter[str] = Counter()
"""Kind of input -> how many were tried, and how many of these were refused."""

_PYTHON = re.compile(
    r"Traceback|has no attribute|not subscriptable|unhashable|indices must be|unexpected keyword|positional argument|"
    r"unsupported operand|codec can't|Exceeds the limit|recursion|NoneType|not supported between|object is not|"
    r"discriminator|StrictSampling|must be str|not iterable|invalid literal|embedded null|is not JSON serializable|"
    r"pydantic|jsonschema|\bKeyError|\bTypeError|\bself\b"
)
"""What Python, pydantic and others say to a programmer, and a user cannot use."""


def trials(count: int) -> settings:
    """This many inputs, the same ones on every machine."""
    return settings(
        max_examples=max(1, int(count * MORE)),
        derandomize=MORE == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )


def fair(message: str) -> None:
    """One line, of a length that one reads, in words that are not Python's."""
    assert message.strip() and "\n" not in message, message
    assert len(message) < 1500, message
    assert not _PYTHON.search(message), message


def refused(kind: str, call: Callable[[], Any]) -> str | None:
    """What the call says to an input that it refuses, None if it takes it. Anything but a ValueError is a fault."""
    CASES[kind] += 1
    try:
        call()
    except ValueError as raised:
        said = raised
    else:
        return None
    assert type(said) is ValueError, repr(said)
    CASES[f"{kind}, refused"] += 1
    fair(str(said))
    return str(said)


def command(kind: str, argv: Sequence[str], stdin: str = "") -> str | None:
    """The same of a command line: exit 0, or exit 2 with one line, which is returned."""
    CASES[kind] += 1
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _typed(stdin):
        try:
            code = cli.main(list(argv))
        except SystemExit as stop:  # argparse, which prints how to use the command too
            code = int(stop.code or 0)
    lines = [line for line in err.getvalue().splitlines() if not line.startswith(("warning: ", "usage: ", "  "))]
    if code == 0:
        return None
    assert code == 2, err.getvalue()
    assert len(lines) == 1, err.getvalue()
    CASES[f"{kind}, refused"] += 1
    fair(lines[0])
    return lines[0]


@contextlib.contextmanager
def _typed(text: str) -> Iterator[None]:
    import sys

    before, sys.stdin = sys.stdin, io.StringIO(text)
    try:
        yield
    finally:
        sys.stdin = before


@contextlib.contextmanager
def untouched(folder: Path, but: Sequence[str] = ()) -> Iterator[None]:
    """Nothing in this folder may change meanwhile, but for what begins with these names."""
    before = _files(folder, but)
    yield
    assert _files(folder, but) == before


def _files(folder: Path, but: Sequence[str]) -> dict[str, bytes]:
    names = ((path.relative_to(folder).as_posix(), path) for path in sorted(folder.rglob("*")) if path.is_file())
    return {name: path.read_bytes() for name, path in names if not name.startswith(tuple(but))}


numbers = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([-1, 0, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30]),
    st.floats(),
    st.sampled_from([1e308, 5e-324, -0.0, 1e-9, 1.5, 1e3]),
)

words = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            *[
                "",
                " ",
                ".",
                "..",
                "/",
                "~",
                "nan",
                "inf",
                "-inf",
                "1e3",
                "null",
                "yes",
                "None",
                "\u202e",
                "\x1b[31m",
                "a\nb",
            ],
            *[
                "coevolve-tiny",
                "coevolve-coin",
                "gpt2/none",
                "./nothing",
                "no/such/folder",
                "x.yaml",
                "x.jsonl",
                "a" * 300,
            ],
            *[
                "x.jsonl.gz",
                "rows.csv",
                "own.py:Name",
                "own.py",
                ":",
                "a:b",
                "{x}",
                "{",
                "}}",
                "%s",
                "$HOME",
                "e\u0301",
            ],
        ]
    ),
)

components = st.sampled_from(
    [
        *["sentiment", "game", "rows", "writing-mini", "arithmetic", "imdb", "chain", "rounds", "tree", "best_of"],
        *["discussion", "fixed", "exchange", "rotate", "cory", "ppo", "magrpo", "grpo", "rloo", "no-such-thing"],
    ]
)

scalars = st.one_of(st.none(), st.booleans(), numbers, words, components)

values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(words, components), inner, max_size=4)
    ),
    max_leaves=8,
)


def _like(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same type, so that what is behind the reading is reached too."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.one_of(st.integers(1, 40), numbers)
    if isinstance(value, float):
        return st.one_of(st.floats(1e-6, 1.0), numbers)
    return st.one_of(components, words) if isinstance(value, str) else st.just(value)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all that is in a tree of dicts and lists."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [found for key, value in inside for found in [(*path, key), *places(value, (*path, key))]]


@st.composite
def changed(draw: st.DrawFn, tree: Any, most: int = 2) -> Any:
    """A good tree with a few strange changes: other values and types, missing, renamed and extra keys, nesting."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, most))):
        path = draw(st.sampled_from(places(tree) or [()]))
        if not path:
            return draw(values)
        holder = tree
        for key in path[:-1]:
            holder = holder[key]
        how = draw(st.sampled_from([*["like"] * 6, "scalar", "value", "gone", "renamed", "more", "deep", "elsewhere"]))
        if how == "like":
            holder[path[-1]] = draw(_like(holder[path[-1]]))
        elif how == "scalar":
            holder[path[-1]] = draw(scalars)
        elif how == "value":
            holder[path[-1]] = draw(values)
        elif how == "gone":
            del holder[path[-1]]
        elif how == "elsewhere":
            other: Any = tree
            for key in draw(st.sampled_from(places(tree))):
                other = other[key]
            holder[path[-1]] = copy.deepcopy(other)
        elif how == "deep":
            for _ in range(draw(st.sampled_from([1, 2, 50]))):
                holder[path[-1]] = draw(st.sampled_from([lambda v: [v], lambda v: {"name": v}]))(holder[path[-1]])
        elif isinstance(holder, dict):
            value = holder.pop(path[-1]) if how == "renamed" else draw(values)
            holder[draw(words)] = value
    return tree


@st.composite
def torn(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes as a bad disk, a bad editor or a bad copy leaves them."""
    how = draw(
        st.sampled_from(["cut", "zeroed", "flipped", "line", "twice", "inserted", "empty", "utf-16", "bom", "nul"])
    )
    at = draw(st.integers(0, max(0, len(content) - 1)))
    if how == "flipped" and content:
        return content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]
    if how == "line":
        lines = content.splitlines(keepends=True) or [b""]
        gone = draw(st.integers(0, len(lines) - 1))
        return b"".join(lines[:gone] + lines[gone + 1 :])
    if how == "inserted":
        more = draw(st.one_of(st.binary(max_size=8), st.sampled_from(ODD)))
        return content[:at] + more + content[at:]
    return {
        "cut": content[:at],
        "zeroed": bytes(len(content)),
        "flipped": content,
        "twice": content + content,
        "empty": b"",
        "utf-16": content.decode("latin-1").encode("utf-16"),
        "bom": b"\xef\xbb\xbf" + content,
        "nul": content[:at] + bytes(4) + content[at:],
    }[how]


ODD = [
    *[b"null", b"[]", b"{}", b"3", b"NaN", b"Infinity", b"1e400", b"9" * 5000, b"[" * 10_000, b"{" * 3000],
    *[b'"\\ud800"', b"\xff\xfe", b"\r\n", b"\n", b"\x00", b"&a [*a]", b"*a", b"!!int x", b"!!binary x", b"2026-13-45"],
    *[b"<<: x", b"? [a]", b"--- a\n--- b", b"\t", b"'", b'"', b": ", b"- ", b"0x" + b"f" * 6000, b"0b_", b"="],
    *[b"!!python/object:os.system x", b"a: &a {b: *a}", b"1: 2", b"a: 1\na: 2", b"a: 2026-11-23", b'a: "\\ud800"'],
    b"\n".join(b"k%d: &k%d [%s]" % (n, n, b", ".join([b"*k%d" % (n - 1)] * 9) if n else b"x") for n in range(9)),
]
"""Pieces that have broken readers of YAML and JSON."""

files = st.one_of(
    st.sampled_from(ODD), st.binary(max_size=64), values.map(lambda v: repr(v).encode("utf-8", "replace"))
)
"""Whole contents without any sense."""


def dumped(tree: Any, *, ascii_only: bool = False) -> bytes:
    """As YAML, lone surrogates and all."""
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=not ascii_only).encode("utf-8", "surrogatepass")
