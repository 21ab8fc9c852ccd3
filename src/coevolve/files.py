"""Strict readers of text and JSON files. Each error is a ValueError of one line that names the file and the place."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

_SHOWN = 60  # characters of a value that a message repeats
_PATH = 300  # characters of a path
_BRACES = 256  # places in a text that are tried as the beginning of a JSON object


def read_text(file: Path, content: bytes | None = None) -> str:
    """Return the text of a UTF-8 file (or of ``content``). Raises ValueError naming line and byte that are invalid."""
    content = file.read_bytes() if content is None else content
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        decoded = error.object  # without a byte order mark
        line = decoded.count(b"\n", 0, error.start) + 1
        byte = f"line {line}, byte {decoded[error.start]:#04x}"
        raise ValueError(f"{file} is not UTF-8 text ({byte}); save it as UTF-8") from error


def check_place(file: Path, key: str) -> None:
    """Raise ValueError, which begins with the key, for a file that cannot be written, because its path is a folder,
    or as ``check_folder`` does for its parent."""
    if file.is_dir():
        raise ValueError(f"{key} {file} is a folder; name a file")
    check_folder(file.parent, key)


def check_folder(folder: Path, key: str) -> None:
    """Raise ValueError, which begins with the key, if the folder or one of its parents is a file, or may not be
    written."""
    there = next(one for one in (folder, *folder.parents) if os.path.exists(one))
    if not there.is_dir():
        raise ValueError(f"{key}: {there} is a file; choose another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{key}: {there} may not be written; choose another folder")


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises ValueError, naming file and line, for no file and for other content."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist; check the path")
    return parse_json(read_text(file), str(file))


def parse_json(text: str, where: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raises ValueError that begins with ``where``."""
    value = parse_any_json(text, where, "a JSON object")
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {kind_of(value)}; want a JSON object such as {{...}}")
    return value


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a model's text, without those inside others; at most 256 braces are tried."""
    decoder, place = json.JSONDecoder(), text.find("{")
    for _ in range(_BRACES):
        if place < 0:
            return
        try:
            found, end = decoder.raw_decode(text, place)
            yield found
        except (ValueError, RecursionError):
            end = place + 1
        place = text.find("{", end)


def parse_any_json(text: str, where: str, want: str) -> Any:
    """Return the JSON value in a text. Raises ValueError that begins with ``where``. want: the value expected there.

    Strict: no NaN or infinities, no key twice, no number that a float cannot hold.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_float=_float, parse_int=_integer, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        raise ValueError(f"{where}: {error.msg} at {line}column {error.colno}; want {want}") from error
    except RecursionError as error:
        raise ValueError(f"{where}: nested too deeply; want {want}") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def shown(value: Any) -> str:
    """Return the repr of a value for a message, cut if it is long."""
    if isinstance(value, int) and value.bit_length() > 1000:  # Python prints no more than 4,300 digits
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # such a number in a list; deeply nested lists
        return kind_of(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def cut(path: str | Path) -> str:
    """Return a path for a message: cut if it is long, line breaks written as ``\\n``."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(path)[:_PATH])
    return text if len(str(path)) <= _PATH else f"{text}... ({len(str(path))} characters)"


def kind_of(value: Any) -> str:
    """Return the type of a value in words: ``a list``, ``an int``, ``nothing`` for None."""
    name = type(value).__name__
    return "nothing" if value is None else f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {shown(next(key for key in keys if keys.count(key) > 1))} is there twice; leave one")
    return found


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {_short(digits)} is too large; want one that a 64-bit float holds")
    return value


def _integer(digits: str) -> int:
    _float(digits)
    return int(digits)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON; want a number, or null where there is none")


def _short(digits: str) -> str:
    return digits if len(digits) <= _SHOWN else f"{digits[:12]}... of {len(digits)} digits"
