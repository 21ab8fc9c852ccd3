"""Rows of a data set: from a folder of gzip-compressed JSON lines, or from the Hugging Face hub.

The environment variable ``COEVOLVE_DATA`` names the folder. Where it is set it is the only source, so that a machine
without a network never waits for one.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from coevolve.faults import one_line
from coevolve.files import cut, parse_json, read_text
from coevolve.types import Problem

FOLDER = "COEVOLVE_DATA"

Row = dict[str, Any]
Split = Literal["train", "test"]
Item = TypeVar("Item")


class Later(Sequence[Item]):
    """A sequence that is made on first use, so that a task can write prompts where its data are missing."""

    def __init__(self, make: Callable[[], Sequence[Item]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Sequence[Item]:
        return self._make()

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, place: Any) -> Any:
        return self._made[place]


def rows(name: str, *, dataset: str, split: str, config: str | None = None) -> list[Row]:
    """Return the rows of ``$COEVOLVE_DATA/<name>.jsonl.gz`` if that is set, else of a split of a hub data set.

    config: the configuration of the data set, None if it has only one.
    """
    return read(name) if os.environ.get(FOLDER) else hub(dataset, split, config)


def read(name: str) -> list[Row]:
    """Return the rows of ``$COEVOLVE_DATA/<name>.jsonl.gz``. Raises ValueError if the variable or file is missing, or
    the file is bad."""
    folder = os.environ.get(FOLDER)
    if not folder:
        raise ValueError(f"data {name!r}: {FOLDER} is not set; set it to the folder that holds {name}.jsonl.gz")
    path = Path(folder) / f"{name}.jsonl.gz"
    if not path.is_file():
        raise ValueError(
            f"data {name!r}: {path} does not exist; put it there, point {FOLDER} at the right folder, or unset it to "
            "ask the hub"
        )
    return jsonl(path)


def jsonl(path: Path) -> list[Row]:
    """Return the rows of a file with one JSON object a line, compressed if its name ends in ``.gz``.

    Raises ValueError if the file is missing, empty or damaged, or a line is not strictly a JSON object. Empty lines at
    the end are ignored.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        why = "it cannot be unpacked" if isinstance(error, zlib.error) else error
        raise ValueError(f"{path}: {why}; the file is damaged, copy it again") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); check the file") from error
    text = read_text(path, content).replace("\r\n", "\n").replace("\r", "\n").rstrip()
    if not text:
        raise ValueError(f"{path} holds no rows; want at least one JSON object a line")
    return [_row(f"{path}, line {line}", row) for line, row in enumerate(text.split("\n"), start=1)]


def check_file(path: Path) -> None:
    """Raise ValueError if the path is not a file."""
    if not os.path.isfile(path):  # unlike Path.is_file, does not raise for a name that no file system takes
        raise ValueError(f"{cut(path)} {'is no file' if os.path.exists(path) else 'does not exist'}; check the path")


_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""An escaped surrogate, which is half of a character."""


def _row(where: str, text: str) -> Row:
    if not text.strip():
        raise ValueError(f"{where}: empty; want a JSON object, or no line")
    row = parse_json(text, where)
    if _HALF.search(text):
        check_text(row, where)
    return row


def check_text(row: Row, where: str) -> None:
    """Raise ValueError if a text of the row holds half a character. What lies under keys that JSON has not, such as
    tuples, is not looked at."""
    try:
        json.dumps(row, ensure_ascii=False, default=str, skipkeys=True).encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"U+{ord(error.object[error.start]):04X}"
        raise ValueError(f"{where}: {half} is half a character, which no model can read; leave it out") from error


def problems(
    rows: Sequence[Row], where: str, read: Callable[[Row], Mapping[str, Any] | None], id: str = "id"
) -> list[Problem]:
    """Return rows as problems. where: the name of the rows, for messages.

    read: row -> the problem's data, None to leave the row out. id: the column that names a problem; rows with null or
    nothing there are named by their position, from 0. Raises ValueError that names the row where ``read`` raises one,
    and both rows where two have the same name: the problems of a run are told apart by their names.
    """
    found: list[Problem] = []
    named: dict[str, int] = {}
    for position, row in enumerate(rows):
        given = "" if row.get(id) is None else str(row[id])
        name = given or str(position)
        place = f"{where}, row {position}" + (f" ({cut(name)})" if given else "")
        try:
            columns = read(row)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        if columns is None:
            continue
        if named.setdefault(name, position) < position:
            raise ValueError(
                f"{place}: its name {cut(name)!r} is that of row {named[name]} too; make column {id!r} unique"
            )
        found.append(Problem(name, columns))
    return found


def text(row: Row, *columns: str) -> str:
    """Return the text in the first of these columns that has any. Raises ValueError if none has."""
    for column in columns:
        if isinstance(said := row.get(column), str) and said.strip():
            return said
    raise ValueError(f"no text in column {' or '.join(map(repr, columns))}; it has {', '.join(row) or 'none'}")


def hub(dataset: str, split: str, config: str | None = None) -> list[Row]:
    """Return the rows of one split of a hub data set, or of several ("train+test"). config: as in ``rows``.

    Raises ValueError if the package ``datasets`` is missing, the hub or data set cannot be reached, or the split is
    empty.
    """
    try:
        from datasets import load_dataset  # an optional dependency
    except ImportError as error:
        raise ValueError(f"data set {dataset!r} is on the hub; pip install 'coevolve[hub]' or set {FOLDER}") from error
    named = (dataset,) if config is None else (dataset, config)
    try:
        found = [dict(row) for row in load_dataset(*named, split=split)]
    except Exception as error:  # of the library, its HTTP client or the file system
        first = "\n".join(str(error).splitlines()[:2])  # the second line lists the configurations
        why = one_line(first) or type(error).__name__
        advice = f"check the name and the network, or set {FOLDER}"
        raise ValueError(f"data set {'/'.join(named)!r}, split {split!r}: {why}; {advice}") from error
    if not found:
        raise ValueError(f"data set {dataset!r}, split {split!r} holds no rows; name another split")
    return found
