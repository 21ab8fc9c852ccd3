"""Names become folders, columns and lines on a terminal, so they are letters, digits and ``-_.``, and no paths."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_RUN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.=+-]{0,199}")
_OTHER = re.compile(r"[^A-Za-z0-9_.=+-]+")


def check_names(key: str, names: Iterable[object]) -> None:
    """Raises ValueError for a name of a policy or a role that could be a path or disturb a line. key: for messages."""
    for name in names:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ValueError(
                f"{key}: the name {str(name)[:80]!r} cannot be; want letters, digits and -_., no dot first, at most 64"
            )


def check_run(name: str) -> None:
    """Raises ValueError for a name of a run's folder. Sweeps write settings in them: ``=`` and ``+`` may be, and 200
    characters."""
    if not _RUN.fullmatch(name):
        raise ValueError(
            f"the name {name[:80]!r} of a run cannot be; want letters, digits and -_.=+ (no dot first), at most 200"
        )


def run_name(folder: Path) -> str:
    """What a run in this folder, which its user may have renamed, is called where others read it."""
    return _OTHER.sub("-", folder.resolve().name).lstrip(".=+")[:200] or "run"


def inside(folder: Path, name: str) -> Path:
    """The path of a file that a manifest or a team names. Raises ValueError if it leads out of the folder."""
    if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        raise ValueError(f"{folder} names {name[:80]!r}, which is not in it; it was not written by coevolve")
    return folder / name
