"""Counting and removing the entries of a case's own folder. Their names are chosen by the case."""

from __future__ import annotations

import os


def count(folder: str, most: int) -> int:
    """Count the files and folders in a folder, at any depth, until over ``most``; ``most`` + 1 if it cannot be read."""
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
        except OSError:  # the case has removed the right to read it, or its path is too long
            return most + 1
    return found


def empty(folder: str) -> None:
    """Remove all entries of a folder. Entries of subfolders are first moved up into it, so that no path is too long."""
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
