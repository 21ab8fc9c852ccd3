"""Reading of a user's rows: from a file, whose kind its name tells, a hub data set, or memory."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coevolve.files import cut, kind_of, parse_any_json, read_text, shown
from coevolve.tasks import data
from coevolve.tasks.data import Row

Source = str | Path | Sequence[Mapping[str, Any]]
"""A file, a hub data set (``owner/name`` or ``owner/name:split``), or rows: a list of dicts, a ``datasets.Dataset``."""


def load(source: Source, split: str) -> list[Row]:
    """Return the rows of a source. split: the split of a hub data set that names none.

    Raises ValueError, which names the file and the line or row, for a source that cannot be read or a row without named
    values.
    """
    if not isinstance(source, str | Path):
        return in_memory(source)
    name = os.path.expanduser(str(source))
    for ending, reader in READERS.items():
        if name.endswith(ending):
            data.check_file(path := Path(name))
            if not (rows := reader(path)):
                raise ValueError(f"{path} holds no rows; want at least one")
            return rows
    looks = isinstance(source, Path) or name.endswith(_OTHER_FILES) or name.startswith((".", "/"))
    if looks or os.path.exists(name):
        raise ValueError(f"task {cut(name)}: a file of another kind; want {', '.join(READERS)}")
    dataset, _, named = name.partition(":")
    owner, _, rest = dataset.partition("/")
    short, _, config = rest.partition("/")
    split = named or split
    file = "_".join(filter(None, (short or owner, config, split)))
    return data.rows(file, dataset=f"{owner}/{short}" if short else owner, split=split, config=config or None)


def called(source: Source) -> str:
    """Return the name of a source in messages."""
    return cut(source) if isinstance(source, str | Path) else "data in memory"


def in_memory(rows: Iterable[Any]) -> list[Row]:
    """Return the rows of a list or another iterable of dicts, or of a pandas table. Raises ValueError that names the
    first row that is no dict of columns."""
    if isinstance(rows, Mapping):
        raise ValueError(f"task.data is a dict of {', '.join(map(str, rows))}; want the rows of one of them, data[...]")
    if callable(as_dicts := getattr(rows, "to_dict", None)) and hasattr(rows, "iloc"):  # a table of pandas
        rows = as_dicts("records")
    if isinstance(rows, bytes) or not isinstance(rows, Iterable):
        raise ValueError(f"task.data is {shown(rows)}; want a file, a hub data set, or a list of dicts")
    found = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
            raise ValueError(f"data in memory, row {number}: {shown(row)}; want a dict of column to value")
        data.check_text(dict(row), f"data in memory, row {number}")
        found.append(dict(row))
    if not found:
        raise ValueError("data in memory holds no rows; want at least one dict")
    return found


def _json(path: Path) -> list[Row]:
    """Read one JSON array of objects."""
    rows = parse_any_json(read_text(path), str(path), "a list of JSON objects")
    if not isinstance(rows, list):
        raise ValueError(f"{path}: {kind_of(rows)}; want a list of JSON objects such as [{{...}}, {{...}}]")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {number}: {kind_of(row)}; want a JSON object such as {{...}}")
        data.check_text(row, f"{path}, row {number}")
    return rows


def _separated(delimiter: str) -> Callable[[Path], list[Row]]:
    def read(path: Path) -> list[Row]:
        """Read a line of column names, then a line of values for each row; values are texts, or numbers in a column of
        nothing else."""
        csv.field_size_limit(_LONGEST)
        lines = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True)
        try:
            header = next(lines, [])
            _check_header(path, header)
            rows = []
            for values in lines:
                if len(values) != len(header) and values:
                    raise ValueError(f"{path}, line {lines.line_num}: {len(values)} values for {len(header)} columns")
                if values:  # an empty line is no row
                    rows.append(dict(zip(header, values, strict=True)))
        except csv.Error as error:
            where = f"{path}, line {lines.line_num}"
            raise ValueError(f"{where}: {error}; quote a text with a quote or line break") from error
        return _with_numbers(header, rows)

    return read


def _check_header(path: Path, header: Sequence[str]) -> None:
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise ValueError(f"{path}, line 1: the column {twice[0]!r} is there twice; rename one")
    if "" in header:
        hint = " (an index, as pandas writes one, is left out by to_csv(index=False))" * (not header[0])
        at = header.index("") + 1
        raise ValueError(f"{path}, line 1: column {at} has no name; the first line names the columns{hint}")


def _with_numbers(header: Sequence[str], rows: list[Row]) -> list[Row]:
    """Return the rows, converting columns that hold a number in every row: 3 beside 4.5 is 3.0, and 2.50 is 2.5."""
    for name in header:
        for kind in (int, float):
            numbers = [_number(kind, row[name]) for row in rows]
            if all(number is not None for number in numbers):
                for row, number in zip(rows, numbers, strict=True):
                    row[name] = number
                break
    return rows


def _number(kind: Callable[[str], float], text: str) -> float | None:
    """Return the number, or None if the text is no plain one of this kind, or a whole one that a float would change.

    007 and 12e3 are identifiers, +49 30 123456 is a telephone number, and nan is a word; 1e-05 and 1.5e3 are numbers.
    """
    if len(text) > _DIGITS or not _PLAIN.fullmatch(text):
        return None
    try:
        number = kind(text)
    except ValueError:  # a fraction, where a whole number is wanted
        return None
    changed = text.lstrip("-").isdigit() and number != int(text)
    return None if changed or number in (math.inf, -math.inf) else number


def warn_of_types(train: Source, trained: Sequence[Row], test: Source, held_out: Sequence[Row], id: str | None) -> None:
    """Warn of columns that are numbers in one of two ``.csv`` or ``.tsv`` files and text in the other: a reward that
    compares answers would treat 3 and "3" differently. id: the column that names rows, which is not checked."""
    if not all(isinstance(source, str | Path) and str(source).endswith(_UNTYPED) for source in (train, test)):
        return
    for name in [name for name in trained[0] if name in held_out[0] and name != id]:
        texts = [isinstance(rows[0][name], str) for rows in (trained, held_out)]
        if texts[0] != texts[1]:
            (file, rows), other = ((train, trained), test) if texts[0] else ((test, held_out), train)
            values = [row[name] for row in rows]
            words = [value for value in values if _number(int, value) is None and _number(float, value) is None]
            value = words[0] if words else max(values, key=len)  # whole numbers too long for a float, beside a fraction
            number = values.index(value) + 1
            warnings.warn(
                f"task {called(file)}, row {number}: column {name!r} is {shown(value)}, so it holds text here, and in "
                f"{called(other)} numbers, and a reward that compares it pays by two rules; write a number there, or "
                "rows of .jsonl, which say what is text",
                stacklevel=2,
            )


_LONGEST = (1 << 31) - 1  # characters of a value at most; Python's default is 131,072

_DIGITS = 40
"""Characters of a number at most; a longer one is an identifier."""

_PLAIN = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*(e[-+]?[0-9]+)?|e[-+][0-9]+)?|\.[0-9]+(e[-+]?[0-9]+)?)", re.IGNORECASE)
"""A number without a plus sign, an exponent or leading zeros."""


def _parquet(path: Path) -> list[Row]:
    """Read a Parquet file."""
    try:
        from pyarrow import ArrowException, parquet  # an optional dependency
    except ImportError as error:
        raise ValueError(f"{path}: reading it needs a package: pip install 'coevolve[hub]'") from error
    try:
        rows: list[Row] = parquet.ParquetFile(path).read().to_pylist()
    except (ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}; the file is damaged, or no Parquet file") from error
    return rows


READERS: Mapping[str, Callable[[Path], list[Row]]] = {
    ".jsonl": data.jsonl,
    ".jsonl.gz": data.jsonl,
    ".json": _json,
    ".csv": _separated(","),
    ".tsv": _separated("\t"),
    ".parquet": _parquet,
}
"""Ending of a file name -> its reader."""

_UNTYPED = (".csv", ".tsv")
"""Endings of files that do not say what is a number and what is text."""

_OTHER_FILES = (".txt", ".arrow", ".feather", ".xlsx", ".gz", ".zip", ".zst")
"""Endings that no hub data set's name has."""
