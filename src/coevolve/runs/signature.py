"""Signatures that show whether this user made a run: a code that only this user's secret key can make.

``signature.json`` has the checksums of the files that the run's recipe names (Python, pre-training recipes) and an
HMAC of them and of ``recipe.yaml``, by a random key in ``$XDG_STATE_HOME/coevolve/key`` (``~/.local/state``), which
this user alone can read. The signature is not valid for a run that was downloaded, or whose recipe or files have
changed since; it stays valid for a run that was moved. Where no key can be written, runs have no signature.

The file also has the checksums of data files, which are not run. When a run is resumed, a warning names those of all
these files whose contents have changed; files that only lie elsewhere now count as the same.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Checksums = tuple[dict[str, str | None], dict[str, str | None]]
"""Checksums by file: of files that are run, then of files that are only read; None for a missing file."""

FILE = "signature.json"
ROWS = "rows"
"""The name of the task whose data may stand in the recipe itself."""
_BYTES = 32


def rows_in(settings: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the settings of the task ``rows`` that are rows in the recipe itself: data, whatever it looks like."""
    lists = {key: settings[key] for key in ("data", "test") if isinstance(settings.get(key), list)}
    found = {key: rows for key, rows in lists.items() if all(isinstance(row, Mapping) for row in rows)}
    return found if settings.get("name") == ROWS else {}


def files_in(value: Any) -> Iterator[str]:
    """Yield the files in these settings that are run: ``file.py`` of ``file.py:Name``, and pre-training recipes."""
    if isinstance(value, Mapping):
        rows = rows_in(value)
        for key, inner in value.items():
            yield from () if key in rows else files_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from files_in(inner)
    elif isinstance(value, str):
        file = value.rpartition(":")[0]
        if file.endswith(".py"):
            yield file
        elif value.endswith((".yaml", ".yml")):
            yield value


def data_in(value: Any) -> Iterator[str]:
    """Yield the absolute paths of the files in these settings that are read and not run. Not of a setting ``cache``, as
    a judge has, which every step may write."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from () if key == "cache" else data_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from data_in(inner)
    elif isinstance(value, str) and os.path.isabs(value) and os.path.isfile(value) and value not in files_in(value):
        yield value


def checksums(settings: Mapping[str, Any]) -> Checksums:
    """Return the checksums of the files that a recipe's settings name: those that are run, and those that are read."""
    read = [settings.get(key) for key in ("task", "play", "policies")]  # a callback's file may be its output
    return {file: _checksum(file) for file in files_in(settings)}, {file: _checksum(file) for file in data_in(read)}


def signature(run: Path, recipe: str, found: Checksums) -> str | None:
    """Return the text of a run's ``signature.json``. recipe: the text of its ``recipe.yaml``. found: its ``checksums``.

    For a run that is resumed elsewhere, the old paths are kept too, since its checkpoints still name them. Returns None
    if there is no key and none can be made.
    """
    key = _key()
    if key is None:
        return None
    files, data = found
    known = {**_before(run), **files, **data}
    return json.dumps({"files": files, "data": known, "code": _code(key, recipe, files)}, indent=1) + "\n"


def not_own(run: Path) -> str:
    """Return why a run does not count as made here by this user; empty if it does."""
    try:
        recipe = (run / "recipe.yaml").read_text("utf-8")
        found = json.loads((run / FILE).read_text("utf-8"))
        files, code = dict(found["files"]), str(found["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return "nothing shows that you made it here"
    key = _key()
    if key is None or not hmac.compare_digest(_code(key, recipe, files).encode(), code.encode()):
        return "it was not made here by you, or its recipe was changed"
    changed = [file for file, checksum in files.items() if _checksum(file) != checksum]
    return f"{changed[0]} has changed since it was made" if changed else ""


def changed(run: Path, found: Checksums) -> list[str]:
    """Return which of these files have changed since the run was signed; none if its signature cannot be read."""
    before, now = _before(run), {**found[0], **found[1]}
    return [file for file, checksum in now.items() if before.get(file, checksum) != checksum]


def moved(run: Path, there: Any, here: Any) -> bool:
    """Return whether a setting names the same file as when the run was signed, only in another folder now."""
    if not (isinstance(there, str) and isinstance(here, str)) or Path(there).name != Path(here).name:
        return False  # the last part of a path has the :Name of file.py:Name too
    files = [next(iter((*files_in(one), one))) for one in (there, here)]
    checksum = _before(run).get(files[0])
    return checksum is not None and checksum == _checksum(files[1])


def _before(run: Path) -> dict[str, Any]:
    """Return the checksums of files when the run was signed; none if its signature cannot be read."""
    try:
        found = json.loads((run / FILE).read_text("utf-8"))
        return {**found["files"], **found.get("data", {})}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def check_stays(run: Path, files: Iterable[str | Path]) -> None:
    """Raise ValueError if a run that is not this user's own has files outside of it: links, which a report or an export
    would follow."""
    out = [file for file in files if os.path.exists(file) and not Path(file).resolve().is_relative_to(run.resolve())]
    if out and (why := not_own(run)):
        raise ValueError(
            f"{run} would have {out[0]} read and shown or copied, which is not in it, and {why}; "
            "if that is what you want, put a copy into the run, or export it with --trust-code"
        )


def _code(key: bytes, recipe: str, files: Mapping[str, Any]) -> str:
    return hmac.new(key, json.dumps([recipe, sorted(files.items())]).encode(), hashlib.sha256).hexdigest()


def _checksum(file: str) -> str | None:
    """Return a file's SHA-256, None if there is no such file: the name may mean something else to its component."""
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return None


def _put(beside: Path, file: Path) -> None:
    """Move a finished file to its place, unless there is one, which another process was first to put there
    (without hard links, at the same moment, the last one counts)."""
    try:
        os.link(beside, file)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        if not file.exists():
            beside.rename(file)


def _key() -> bytes | None:
    """Return this user's key, which the first call makes; None if it cannot be made or read."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        file = Path(state) / "coevolve" / "key"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            beside = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
            try:
                beside.touch(mode=0o600)
                beside.write_bytes(secrets.token_bytes(_BYTES))
                _put(beside, file)
            finally:
                beside.unlink(missing_ok=True)
        key = file.read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: pathlib's, without a home directory
        return None
    return key if len(key) == _BYTES else None
