"""The seccomp filter of the system calls that a case may make, built by libseccomp (through pyseccomp). All others are
refused, so that an unlisted call can neither keep memory, nor change a file, nor ask about the machine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib
import os
import sys
import tempfile
import termios
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

_ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek _llseek close close_range
access faccessat faccessat2 stat lstat fstat stat64 lstat64 fstat64 newfstatat fstatat64 statx readlink readlinkat
mkdir mkdirat getdents getdents64 getcwd chdir fchdir umask unlink unlinkat rmdir rename renameat renameat2
ftruncate ftruncate64 fsync fdatasync fadvise64 fadvise64_64 arm_fadvise64_64
dup dup2 dup3 pipe pipe2 poll ppoll ppoll_time64 select _newselect pselect6 pselect6_time64
epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2
send sendto recv recvfrom shutdown getsockname getpeername getsockopt
mmap mmap2 munmap mremap mprotect madvise brk msync membarrier map_shadow_stack
rt_sigaction rt_sigprocmask rt_sigreturn sigreturn rt_sigtimedwait rt_sigtimedwait_time64 rt_sigpending rt_sigsuspend
sigaltstack pause alarm setitimer getitimer restart_syscall
nanosleep clock_nanosleep clock_nanosleep_time64 clock_gettime clock_gettime64 clock_getres clock_getres_time64
gettimeofday time times getrusage getrlimit ugetrlimit setrlimit
futex futex_time64 futex_waitv futex_wake futex_wait futex_requeue set_robust_list get_robust_list set_tid_address rseq
sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min getcpu
getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getuid32 geteuid32 getgid32 getegid32
getgroups getpgid getpgrp getsid getpriority capget uname getrandom wait4 waitid exit exit_group
"""
_TRUSTED = "clone fork prctl recvmsg"
"""Further calls of the judges' server: it forks processes, and receives descriptors from the guests' server."""
_OPENS = (("open", 1), ("openat", 2))
"""Calls that open a file, and the position of their flags argument."""
_UNSUPPORTED = "getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr"
"""Calls for extended attributes fail with ENOTSUP, as on a file system without them, so that copying files goes on."""
_YOUNG = range(424, 500)
"""Numbers of the calls of Linux 5.1 and later, the same on every architecture; a C library works without them
(``clone3`` and ``openat2`` pass their arguments in memory, which no filter can read)."""
_WORD = 0xFFFFFFFF
"""Mask of the part of an argument that the kernel reads as an int."""
_CLONE_THREAD, _CLONE_NAMESPACES = 0x00010000, 0x7E020080
_PRCTL = (15, 16, 0x53564D41)
"""PR_SET_NAME, PR_GET_NAME, PR_SET_VMA: names of threads and of memory."""
_FCNTL = (fcntl.F_DUPFD, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_SETFL, fcntl.F_DUPFD_CLOEXEC)
"""Allowed commands of fcntl(2): no locks (each takes kernel memory that no limit counts), no larger pipes, no owners
to be signalled."""
_IOCTL = (termios.FIONBIO, termios.FIONREAD, termios.FIOCLEX, termios.FIONCLEX, termios.TCGETS, termios.TIOCGWINSZ)
_STREAM, _LOCAL = 1, 1
"""Allowed socket pairs: local streams, which reach no other process. A datagram socket could send to any address."""


@cache
def program(*, forks: bool) -> bytes:
    """Return the filter as BPF code; empty if the machine has no libseccomp. forks: for the judges' server.

    Refused calls fail with EPERM, those of ``_YOUNG`` with ENOSYS, so that the C library falls back to older ones.
    """
    library = _library()
    if library is None:
        return b""
    rules = library.SyscallFilter(library.ERRNO(errno.EPERM))
    with contextlib.suppress(OSError):  # a tree instead of a chain halves the time; not in all versions
        rules.set_attr(library.Attr.CTL_OPTIMIZE, 2)
    whole = {*_ALLOWED.split(), *(_TRUSTED.split() if forks else ())}
    for name in sorted(whole):
        _add(library, rules, library.ALLOW, name)
    for name, *conditions in _partly():
        if name not in whole:
            _add(library, rules, library.ALLOW, name, conditions)
    known = {library.resolve_syscall(library.Arch.NATIVE, name) for name in whole}
    for number in _YOUNG:
        if number not in known:
            rules.add_rule(library.ERRNO(errno.ENOSYS), number)
    for name in _UNSUPPORTED.split():
        _add(library, rules, library.ERRNO(errno.ENOTSUP), name)
    return _exported(rules)


@cache
def counter() -> bytes:
    """Return a second filter, which asks the guests' server before each call that can create a file or a folder; empty
    if the machine has no libseccomp."""
    library = _library()
    if library is None:
        return b""
    rules = library.SyscallFilter(library.ALLOW)
    for name, argument in _OPENS:
        _add(library, rules, library.NOTIFY, name, [(argument, os.O_CREAT, os.O_CREAT)])
    for name in ("mkdir", "mkdirat"):
        _add(library, rules, library.NOTIFY, name)
    return _exported(rules)


def seccomp_call() -> int:
    """Return the number of the system call seccomp(2) on this machine; 0 if there is no libseccomp."""
    library = _library()
    return int(library.resolve_syscall(library.Arch.NATIVE, "seccomp")) if library else 0


def _partly() -> Iterator[tuple[Any, ...]]:
    """Yield the calls that are allowed if arguments, each under a mask, have certain values."""
    for name, argument in _OPENS:
        yield name, (argument, os.O_ACCMODE | os.O_TRUNC, os.O_RDONLY)  # to Landlock 1 and 2 truncation is no writing
        yield name, (argument, os.O_ACCMODE, os.O_WRONLY)
        yield name, (argument, os.O_ACCMODE, os.O_RDWR)  # not mode 3, which Landlock takes for neither
    for name, argument, values in (
        ("fcntl", 1, _FCNTL),
        ("fcntl64", 1, _FCNTL),
        ("ioctl", 1, _IOCTL),
        ("prctl", 0, _PRCTL),
    ):
        for value in values:
            yield name, (argument, _WORD, value)
    yield "clone", (0, _CLONE_THREAD | _CLONE_NAMESPACES, _CLONE_THREAD)  # threads, but no processes
    yield "socketpair", (0, _WORD, _LOCAL), (1, 0xF, _STREAM)
    yield "prlimit64", (0, _WORD, 0)  # of the calling process only


def _add(library: Any, rules: Any, action: int, name: str, conditions: Iterable[tuple[int, int, int]] = ()) -> None:
    number = library.resolve_syscall(library.Arch.NATIVE, name)
    if number != -1:  # -1: unknown to this libseccomp
        masked = (library.Arg(argument, library.MASKED_EQ, mask, value) for argument, mask, value in conditions)
        rules.add_rule(action, number, *masked)


def _exported(rules: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _library() -> Any:
    """Return the module pyseccomp; None if it, libseccomp or Linux is missing."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return importlib.import_module("pyseccomp")
    except (ImportError, RuntimeError, OSError):  # RuntimeError: no libseccomp
        return None
