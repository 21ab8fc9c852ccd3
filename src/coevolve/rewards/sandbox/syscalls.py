"""The system calls that a case may not make, as a seccomp filter of libseccomp (through pyseccomp)."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from typing import Any

_REFUSED = """
socket connect bind listen accept accept4
execve execveat
kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal pidfd_open pidfd_getfd
ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp
setsid setpgid setpriority ioprio_set sched_setaffinity sched_setparam sched_setscheduler sched_setattr
unshare setns chroot pivot_root mount umount umount2 swapon swapoff reboot sethostname setdomainname
open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
name_to_handle_at open_by_handle_at fanotify_init quotactl acct syslog vhangup
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat
setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
mkdir mkdirat mknod mknodat symlink symlinkat link linkat truncate
add_key request_key keyctl bpf perf_event_open userfaultfd memfd_create memfd_secret personality modify_ldt
io_uring_setup io_uring_enter io_uring_register io_setup io_submit
shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl
mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
init_module finit_module delete_module kexec_load kexec_file_load iopl ioperm
settimeofday clock_settime clock_adjtime adjtimex
move_pages migrate_pages mbind set_mempolicy lookup_dcookie nfsservctl uselib
"""
_YOUNG = range(424, 500)
"""Calls of Linux 5.1 and later, numbered alike on every machine; those that libseccomp may not know by name yet."""
_YOUNG_ALLOWED = {
    436, 439, 441, 444, 445, 446, 449, 451, 453, 454, 455, 456, 462,
}  # fmt: skip
"""close_range faccessat2 epoll_pwait2 landlock_* futex_waitv cachestat map_shadow_stack futex_* mseal."""
_CLONE_THREAD = 0x00010000
_SET_PDEATHSIG = 1
_WORD = 0xFFFFFFFF
"""The part of an argument that the kernel reads where it wants an int."""
_FCNTL = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: signals to other processes by way of a descriptor."""
_IOCTL = (0x8901, 0x8902, 0x40086602, 0x40046602, 0x401C5820, 0x40087602)
"""FIOSETOWN, SIOCSPGRP likewise; FS_IOC_SETFLAGS (64 and 32 bits), FS_IOC_FSSETXATTR, FS_IOC_SETVERSION: attributes."""
_UNIX, _DATAGRAM, _RAW = 1, 2, 3
"""A pair of stream sockets reaches nobody else; of datagrams, one end can be sent from to any address."""


@cache
def program(*, forks: bool) -> bytes:
    """The filter for the kernel; empty where the machine has none. forks: whether processes may be made.

    Refused calls fail with EPERM, but young ones with ENOSYS, so that the C library takes their older brothers.
    """
    library = _library()
    if library is None:
        return b""
    rules = library.SyscallFilter(library.ALLOW)
    with contextlib.suppress(
        OSError
    ):  # a tree instead of a chain, which halves the time to load it; not in all versions
        rules.set_attr(library.Attr.CTL_OPTIMIZE, 2)
    refuse, unknown = library.ERRNO(errno.EPERM), library.ERRNO(errno.ENOSYS)
    for name in _REFUSED.split():
        number = library.resolve_syscall(library.Arch.NATIVE, name)
        if number != -1 and number not in _YOUNG:  # -1: unknown to this libseccomp
            rules.add_rule(refuse, number)
    if not forks:
        for name in ("fork", "vfork"):
            rules.add_rule(refuse, name)
        rules.add_rule(refuse, "clone", library.Arg(0, library.MASKED_EQ, _CLONE_THREAD, 0))  # threads are all right
        rules.add_rule(refuse, "prctl", library.Arg(0, library.MASKED_EQ, _WORD, _SET_PDEATHSIG))
    for name, argument, mask, value in _partly():
        rules.add_rule(refuse, name, library.Arg(argument, library.MASKED_EQ, mask, value))
    rules.add_rule(refuse, "socketpair", library.Arg(0, library.NE, _UNIX))
    for number in _YOUNG:
        if number not in _YOUNG_ALLOWED:
            rules.add_rule(unknown, number)
    rules.add_rule(refuse, "prlimit64", library.Arg(0, library.NE, 0))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _partly() -> Iterator[tuple[str, int, int, int]]:
    """Calls that are refused where an argument, under a mask, has a value."""
    for command in _FCNTL:
        yield "fcntl", 1, _WORD, command
    for command in _IOCTL:
        yield "ioctl", 1, _WORD, command
    for kind in (_DATAGRAM, _RAW):
        yield "socketpair", 1, 0xF, kind
    emptied = os.O_TRUNC | os.O_ACCMODE  # to empty a file that is opened for reading is no writing to Landlock 1 and 2
    for name, argument in (("open", 1), ("openat", 2)):
        yield name, argument, emptied, os.O_TRUNC


def _library() -> Any:
    """pyseccomp; None where it, libseccomp or the kernel's filter is missing."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return importlib.import_module("pyseccomp")
    except (ImportError, RuntimeError, OSError):  # RuntimeError: no libseccomp
        return None
