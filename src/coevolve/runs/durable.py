"""Files and folders that are whole whatever happens: a kill at any moment, or a power cut.

A rename is atomic, but it may reach the disk before the contents that it names: what is renamed has to be synced
before, and the folder that holds the name after. A folder cannot be deleted at once, so it loses its name first.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

_REMOVED = ".removed"
"""How the name of a folder ends that is being deleted."""

_UNABLE = (errno.EINVAL, errno.ENOTSUP)
"""What file systems say that do not sync folders, some of networks."""


def write_text(file: Path, text: str) -> None:
    """Replace a file at once, or not at all. Raises OSError (a full disk) with what was there intact."""
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
    """Raises OSError if ``write_text`` could not write this file, before there is something to write."""
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
    """Where a file is written before it has its name; another process may be writing it too."""
    return file.with_name(f".{file.name}.{os.getpid()}.tmp")


def publish(beside: Path, target: Path) -> None:
    """Give a finished file or folder its name, contents first. Replaces a file, or an empty folder."""
    sync_all(beside)
    os.replace(beside, target)
    sync(target.parent)


def remove(folder: Path) -> None:
    """Delete a folder that others may look at: it is there and whole, or not there. Nothing if it is not. Of a link,
    the link alone. Raises OSError if it cannot be deleted."""
    gone = folder.with_name(f".{folder.name}{_REMOVED}")
    shutil.rmtree(gone, ignore_errors=True)  # of a kill
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        os.replace(folder, gone)
        sync(folder.parent)
        shutil.rmtree(gone)


def is_left_over(name: str) -> bool:
    """Whether a kill left this: a folder that was being removed, a file or folder that was being written."""
    return name.startswith(".") and name.endswith((_REMOVED, ".tmp"))


def make_folder(folder: Path) -> None:
    """``mkdir -p``, so that the names of the new folders are on the disk."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync(one.parent)


def sync_all(path: Path) -> None:
    """Bring a file, or a folder with all that is in it, to the disk; the innermost first."""
    if path.is_dir():
        for inner in path.iterdir():
            sync_all(inner)
    sync(path)


def sync(path: Path) -> None:
    """Bring the contents of a file, or the names in a folder, to the disk."""
    if os.name != "posix":
        return  # Windows opens no folders
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
    finally:
        os.close(number)
