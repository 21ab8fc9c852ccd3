"""Durable writes: files and folders that are whole after a kill or a power cut at any moment.

A rename is atomic, but may reach the disk before the contents of the file: the contents have to be synced before it,
the folder that holds the name after it. A folder cannot be deleted at once, so it is renamed first.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

_REMOVED = ".removed"
"""Suffix of the name of a folder that is being deleted."""

_UNABLE = (errno.EINVAL, errno.ENOTSUP)
"""Errors of file systems that do not sync folders, such as some network file systems."""

_NO_PLACE = tuple(
    getattr(errno, name)
    for name in ("EACCES", "EEXIST", "EINVAL", "ELOOP", "ENAMETOOLONG", "ENOENT", "ENOTDIR", "EPERM", "EROFS")
)
"""Errors of making a folder where none can be: another path is to be chosen."""


def write_text(file: Path, text: str) -> None:
    """Replace a file at once, or not at all. Raises OSError (a full disk) and leaves the old file intact."""
    beside = _beside(file)
    try:
        with beside.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(beside, file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(file.parent)


def check_writable(file: Path) -> None:
    """Raise OSError if ``write_text`` could not write this file: a check before long work whose result goes there."""
    beside = _beside(file)
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        beside.touch()
        beside.unlink()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise OSError(f"{file} cannot be written ({why}); see to its folder, or take a copy of it") from error


def _beside(file: Path) -> Path:
    """Return the temporary path of a file; it has the process id, since another process may write the file too."""
    return file.with_name(f".{file.name}.{os.getpid()}.tmp")


def publish(beside: Path, target: Path) -> None:
    """Rename a finished file or folder to its final name, after its contents are synced.

    Replaces a file, or an empty folder.
    """
    sync_all(beside)
    os.replace(beside, target)
    sync(target.parent)


def remove(folder: Path) -> None:
    """Delete a folder, of a link only the link; other processes see the folder whole or not at all.

    Does nothing if there is none. Raises OSError if it cannot be deleted."""
    gone = folder.with_name(f".{folder.name}{_REMOVED}")
    shutil.rmtree(gone, ignore_errors=True)  # left by a kill
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        os.replace(folder, gone)
        sync(folder.parent)
        shutil.rmtree(gone)


def is_left_over(name: str) -> bool:
    """Return whether a kill left the file or folder of this name: one that was being removed or written."""
    return name.startswith(".") and name.endswith((_REMOVED, ".tmp"))


def make_folder(folder: Path) -> None:
    """Make a folder and its parents as ``mkdir -p`` does, and sync the names of the new folders.

    Raises ValueError for one that cannot be there, and OSError for a shortage or a failure of the disk."""
    missing = [one for one in (folder, *folder.parents) if not os.path.exists(one)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        raise ValueError(f"the folder {folder} cannot be made ({error.strerror}); choose another one") from error
    for one in missing:
        sync(one.parent)


def sync_all(path: Path) -> None:
    """Sync a file, or a folder with all its contents, to the disk; the innermost first."""
    if path.is_dir():
        for inner in path.iterdir():
            sync_all(inner)
    sync(path)


def sync(path: Path) -> None:
    """Sync the contents of a file, or the names in a folder, to the disk."""
    if os.name != "posix":
        return  # Windows cannot open folders
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
    finally:
        os.close(number)
