"""A limit on the number of a guest's files: the kernel asks the guests' server before each of its calls that can create
a file or a folder, so that the limit cannot be raced. See seccomp_unotify(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct

from . import folder
from .confine import Confinement, checked, libc

FILES = 64
"""Most files and folders in a guest's folder at a time. A guest with several threads may exceed it by their number."""
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
"""SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND."""
_QUESTION = struct.Struct("Q72x")
_ANSWER = struct.Struct("QqiI")
_CONTINUE = 1


def hand_over(confinement: Confinement, server: socket.socket) -> None:
    """In the guest: install the filter that asks before calls, and send its descriptor to the server."""
    if confinement.counter is None:
        return
    words = (ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(_NEW_LISTENER), ctypes.byref(confinement.counter))
    listener = checked(libc.syscall(ctypes.c_long(confinement.settings["seccomp_call"]), *words))
    socket.send_fds(server, [b"asked here"], [listener])
    os.close(listener)


def take_over(confinement: Confinement, guest: socket.socket) -> int:
    """In the server: receive the descriptor; return -1 if the guest died before, or if the kernel does not ask."""
    if confinement.counter is None:
        return -1
    _, descriptors, _, _ = socket.recv_fds(guest, 16, 1)
    return descriptors[0] if descriptors else -1


class Counter:
    """The file count of one guest, whose folder is empty at first, and the answers to the kernel."""

    def __init__(self, place: str) -> None:
        self._place, self._left = place, FILES

    def answer(self, listener: int) -> None:
        """Let the call go on, or make it fail with EDQUOT if the guest has too many files."""
        question = bytearray(_QUESTION.size)
        with contextlib.suppress(OSError):  # the guest was killed, or a signal came first
            fcntl.ioctl(listener, _RECEIVE, question, True)
            (number,) = _QUESTION.unpack(question)
            if self._left <= 0:
                self._left = FILES - folder.count(self._place, FILES)
            self._left -= 1
            full = self._left < 0
            answer = _ANSWER.pack(number, 0, -errno.EDQUOT if full else 0, 0 if full else _CONTINUE)
            fcntl.ioctl(listener, _SEND, answer)
