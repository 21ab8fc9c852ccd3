"""Whether this user made a run here: a code in the run that only who has this user's secret key can make.

``signature.json`` has the checksums of the files that the run's recipe names (Python, pre-training recipes) and an
HMAC of them and of ``recipe.yaml``, by a random key in ``$XDG_STATE_HOME/coevolve/key`` (``~/.local/state``), which
this user alone can read. It does not fit a run that was downloaded, or whose recipe or files have changed since; it
does fit one that was moved. Where no key can be written, runs have none.

Beside them it has the checksums of data files, which are not run: whoever goes on is told which of all these files are
others by now, and files that only lie elsewhere are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Checksums = tuple[dict[str, str | None], dict[str, str | None]]
"""By file: of those that are run, of those that are read; None where there is no such file."""

FILE = "signature.json"
_BYTES = 32


def files_in(value: Any) -> Iterator[str]:
    """The files in these settings that are run: ``file.py`` of ``file.py:Name``, and recipes of models to pre-train."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from files_in(inner)
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
    """The files in these settings that are read and not run, by their whole paths."""
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from data_in(inner)
    elif isinstance(value, str) and os.path.isabs(value) and os.path.isfile(value) and value not in files_in(value):
        yield value


def checksums(settings: Mapping[str, Any]) -> Checksums:
    """Of the files that a recipe's settings name: those that are run, and those that are read."""
    read = [settings.get(key) for key in ("task", "play", "policies")]  # a callback's file may be one that it writes
    return {file: _checksum(file) for file in files_in(settings)}, {file: _checksum(file) for file in data_in(read)}


def signature(run: Path, recipe: str, found: Checksums) -> str | None:
    """What ``signature.json`` of a run has to say: of the text of its ``recipe.yaml``, and the files that it names.

    Of a run that goes on elsewhere it keeps the old places, too, which its checkpoints still name. None where there is
    no key, and none can be made.
    """
    key = _key()
    if key is None:
        return None
    files, data = found
    known = {**_before(run), **files, **data}
    return json.dumps({"files": files, "data": known, "code": _code(key, recipe, files)}, indent=1) + "\n"


def not_own(run: Path) -> str:
    """Why a run does not count as made here by this user; empty if it does."""
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
    """Which of these files are others than when the run was signed; none where nothing tells."""
    before, now = _before(run), {**found[0], **found[1]}
    return [file for file, checksum in now.items() if before.get(file, checksum) != checksum]


def moved(run: Path, there: Any, here: Any) -> bool:
    """Whether a setting names, in another folder now, the file that it named when the run was signed."""
    if not (isinstance(there, str) and isinstance(here, str)) or Path(there).name != Path(here).name:
        return False  # what is behind the colon of file.py:Name is a part of this name
    files = [next(iter((*files_in(one), one))) for one in (there, here)]
    checksum = _before(run).get(files[0])
    return checksum is not None and checksum == _checksum(files[1])


def _before(run: Path) -> dict[str, Any]:
    """The checksums of files when the run was signed; none where nothing tells."""
    try:
        found = json.loads((run / FILE).read_text("utf-8"))
        return {**found["files"], **found.get("data", {})}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def check_stays(run: Path, files: Iterable[str | Path]) -> None:
    """Raises ValueError for files outside of a run that is not this user's own: links, which a report or an export of
    it would follow."""
    out = [file for file in files if os.path.exists(file) and not Path(file).resolve().is_relative_to(run.resolve())]
    if out and (why := not_own(run)):
        raise ValueError(
            f"{run} would have {out[0]} read and shown or copied, which is not in it, and {why}; "
            "if that is what you want, put a copy into the run, or export it with --trust-code"
        )


def _code(key: bytes, recipe: str, files: Mapping[str, Any]) -> str:
    return hmac.new(key, json.dumps([recipe, sorted(files.items())]).encode(), hashlib.sha256).hexdigest()


def _checksum(file: str) -> str | None:
    """None for what is no file: a name that means something else to whoever reads it."""
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except (OSError, ValueError):  # ValueError: no name at all
        return None


def _key() -> bytes | None:
    """This user's key, made when it is first asked for. None if it cannot be."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        file = Path(state) / "coevolve" / "key"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            beside = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
            try:
                beside.touch(mode=0o600)
                beside.write_bytes(secrets.token_bytes(_BYTES))
                with contextlib.suppress(FileExistsError):  # another process was first, and its key is the one
                    os.link(beside, file)
            finally:
                beside.unlink(missing_ok=True)
        key = file.read_bytes()
    except (OSError, RuntimeError):  # pathlib's where there is no home
        return None
    return key if len(key) == _BYTES else None
