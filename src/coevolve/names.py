"""Checks of names, which become folders, columns and terminal lines (letters, digits and ``-_.``, no paths), and the
name that was meant where an unknown one is given."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_RUN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.=+-]{0,199}")
_OTHER = re.compile(r"[^A-Za-z0-9_.=+-]+")


def check_names(key: str, names: Iterable[object]) -> None:
    """Raise ValueError for a name of a policy or role that could be a path or break a line. key: for messages."""
    for name in names:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ValueError(
                f"{key}: the name {str(name)[:80]!r} cannot be; want letters, digits and -_., no dot first, at most 64"
            )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"``, or an empty text if no known word is near."""
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), list(names), n=1, cutoff=0.6)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def server_of(url: str) -> str:
    """Return the address of a server, which may be written with the ``/v1`` that clients of OpenAI's API are given."""
    return url.rstrip("/").removesuffix("/v1")


def check_run_name(name: str) -> None:
    """Raise ValueError for a bad name of a run's folder. Sweeps put settings into these names, so ``=`` and ``+`` are
    allowed, and 200 characters."""
    if not _RUN.fullmatch(name):
        raise ValueError(
            f"the name {name[:80]!r} of a run cannot be; want letters, digits and -_.=+ (no dot first), at most 200"
        )


def run_name(folder: Path) -> str:
    """Return the name of the run in this folder for reports; a folder that was renamed may need replacements."""
    return _OTHER.sub("-", folder.resolve().name).lstrip(".=+")[:200] or "run"


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file named in a manifest or a team. Raises ValueError if it leads out of the folder."""
    if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        raise ValueError(f"{folder} names {name[:80]!r}, which is not in it; it was not written by coevolve")
    return folder / name
