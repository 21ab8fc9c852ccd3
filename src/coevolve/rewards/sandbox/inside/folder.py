"""A case's own folder: how much is in it, and emptied when the case is over. Names in it are the case's own choice."""

from __future__ import annotations

import os


def count(folder: str, most: int) -> int:
    """Files and folders in it, at any depth, counted until there are more than ``most``; more, if it cannot be read."""
    found, waiting = 0, [folder]
    while waiting and found <= most:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    found += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except FileNotFoundError:
            continue
        except OSError:  # the case has taken itself the right to read it, or it lies too deep for a path
            return most + 1
    return found


def empty(folder: str) -> None:
    """Remove all that is in it. A folder inside gives its entries to this one first: none lies too deep for a path."""
    while True:
        with os.scandir(folder) as found:
            entries = list(found)
        if not entries:
            return
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            with os.scandir(entry.path) as inner:
                for one in list(inner):
                    if one.is_dir(follow_symlinks=False):
                        os.chmod(one.path, 0o700)  # without it a folder cannot be moved
                    os.rename(one.path, os.path.join(folder, os.urandom(16).hex()))
            os.rmdir(entry.path)
