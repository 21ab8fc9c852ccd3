"""What a program may try on what each layer of the sandbox protects: code of a case, for ``matrix``.

Each ``attack_`` returns True if it came through. Its docstring has the words by which the level names it where it may;
none: it never may. FOLDER is one that everybody may write, and so are the files in it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
# Their values, and those below, are said behind the end of this file; numbers of calls are those of x86-64.
FOLDER, NAME, NAMED, MARK = "", "", "", ""
TRAINER, KEY, ADDRESS, UDP, TCP = 0, 0, 0, 0, 0
LOOPBACK_BYTES = 40
"""Of one network interface's address."""


class Vector(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


def call(*words):
    return libc.syscall(*[ctypes.c_long(word) if isinstance(word, int) else word for word in words])


def at(name):
    return f"{FOLDER}/{name}"


def attack_reads_a_file():
    """files that"""
    return os.read(os.open(at("read"), os.O_RDONLY), 9) == b"sings"


def attack_writes_a_file():
    """files that"""
    os.write(os.open(at("write"), os.O_WRONLY | os.O_APPEND), b"x")
    return True


def attack_makes_a_file_outside():
    """files that"""
    os.open(at("made"), os.O_WRONLY | os.O_CREAT)
    return True


def attack_moves_a_file_away():
    """files that"""
    os.rename(at("moved"), at("away"))
    return True


def attack_empties_a_file_opened_with_mode_3():
    """files that"""
    os.open(at("mode3"), 3 | os.O_TRUNC)
    return os.stat(at("mode3")).st_size == 0


def attack_empties_a_file_opened_to_read():
    """files that"""
    os.open(at("mode0"), os.O_TRUNC)
    return os.stat(at("mode0")).st_size == 0


def attack_empties_a_file_truncate():
    """files that"""
    os.truncate(at("truncated"), 0)
    return True


def attack_empties_a_file_openat2():
    """files that"""
    how = struct.pack("QQQ", os.O_TRUNC | 3, 0, 0)
    return call(437, -100, at("openat2").encode(), how, 24) >= 0 and os.stat(at("openat2")).st_size == 0


def attack_empties_a_file_creat():
    """files that"""
    return call(85, at("creat").encode(), 0o600) >= 0


def attack_hard_link_into_its_folder():
    """files that"""
    os.link(at("linked"), "here")
    return True


def attack_writes_through_a_link():
    """files that"""
    os.symlink(at("symlink"), "way")
    os.write(os.open("way", os.O_WRONLY | os.O_APPEND), b"x")
    return True


def attack_changes_times():
    """times, modes"""
    os.utime(at("times"))
    return True


def attack_changes_modes():
    """times, modes"""
    os.chmod(at("modes"), 0o600)
    return True


def attack_reads_attributes():
    """attributes"""
    return bool(os.listxattr(at("xattr")) or os.getxattr(at("xattr"), "user.canary"))


def attack_writes_attributes():
    """attributes"""
    os.setxattr(at("xattr2"), "user.mine", b"x")
    return True


def attack_sees_what_happens_in_a_folder():
    """what happens in folders"""
    return libc.inotify_add_watch(libc.inotify_init1(0), FOLDER.encode(), 0xFFF) >= 0


def attack_asks_for_a_size():
    """names and sizes"""
    return os.stat(at("read")).st_size == 5


def attack_asks_for_the_machines_name():
    """name of the machine"""
    return os.uname().nodename == NAME


def attack_asks_for_addresses():
    """addresses"""
    a, _ = socket.socketpair()
    space = ctypes.create_string_buffer(4096)
    asked = struct.pack("iP", 4096, ctypes.addressof(space))
    return struct.unpack("iP", fcntl.ioctl(a, 0x8912, asked))[0] > LOOPBACK_BYTES


def attack_asks_for_the_machines_memory():
    """any service of the kernel"""
    space = ctypes.create_string_buffer(256)
    return libc.sysinfo(space) == 0


def attack_a_datagram():
    """UDP"""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("127.0.0.1", UDP))
    s.send(b"x")
    time.sleep(0.05)
    s.send(b"x")
    return True


def attack_a_connection():
    """TCP"""
    socket.create_connection(("127.0.0.1", TCP), 1)
    return True


def attack_a_local_socket():
    """local sockets"""
    socket.socket(socket.AF_UNIX).connect(at("local"))
    return True


def attack_a_local_socket_without_a_path():
    """local sockets"""
    socket.socket(socket.AF_UNIX).connect("\0" + NAMED)
    return True


def attack_a_signal_to_the_trainer():
    """signals"""
    os.kill(TRAINER, 0)
    return True


def attack_a_signal_by_way_of_a_descriptor():
    """any service of the kernel"""
    a, _ = socket.socketpair()
    fcntl.fcntl(a, fcntl.F_SETOWN, TRAINER)
    fcntl.fcntl(a, 10, 23)
    return True


def attack_reads_the_trainers_environment():
    """files that"""
    return bool(os.read(os.open(f"/proc/{TRAINER}/environ", os.O_RDONLY), 9))


def attack_reads_the_trainers_memory():
    """signals"""
    space = ctypes.create_string_buffer(64)
    here, there = Vector(ctypes.addressof(space), 8), Vector(ADDRESS, 8)
    return libc.process_vm_readv(TRAINER, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 8


def attack_a_process():
    """child processes"""
    if not os.fork():
        os._exit(0)
    return True


def attack_a_program():
    """child processes"""
    if not os.fork():
        try:
            os.execv("/bin/true", ["true"])
        finally:
            os._exit(1)
    return True


def attack_a_larger_pipe():
    """memory beyond"""
    return fcntl.fcntl(os.pipe()[1], 1031, 1 << 20) >= 1 << 20


def attack_pages_in_a_pipe():
    """memory beyond"""
    space = ctypes.create_string_buffer(4096)
    return libc.vmsplice(os.pipe()[1], ctypes.byref(Vector(ctypes.addressof(space), 4096)), 1, 0) > 0


def attack_a_file_in_memory():
    """memory beyond"""
    return os.memfd_create("x") >= 0


def attack_blocks_behind_a_files_end():
    """memory beyond"""
    return libc.fallocate(os.open("own", os.O_RDWR | os.O_CREAT), 1, ctypes.c_long(0), ctypes.c_long(1 << 19)) == 0


def attack_locks_of_a_file():
    """memory beyond"""
    file = os.open("own", os.O_RDWR | os.O_CREAT)
    for i in range(100):
        fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 2 * i, 1, 0))
    return True


def attack_rules_of_Landlock():
    """any service of the kernel"""
    return call(444, struct.pack("QQQ", 1, 0, 0), 8, 0) >= 0


def attack_timers():
    """any service of the kernel"""
    return call(222, 1, None, ctypes.create_string_buffer(8)) == 0


def attack_larger_buffers_of_sockets():
    """any service of the kernel"""
    a, _ = socket.socketpair()
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
    return True


def attack_open_files_in_a_socket():
    """memory beyond"""
    a, _ = socket.socketpair()
    return socket.send_fds(a, [b"x"], [0]) > 0


def attack_a_ring_of_calls():
    """any service of the kernel"""
    return call(425, 8, ctypes.create_string_buffer(256)) >= 0


def attack_a_program_of_the_kernel():
    """any service"""
    return call(321, 0, ctypes.create_string_buffer(128), 128) >= 0


def attack_keys():
    """any service of the kernel"""
    return call(248, b"user", b"canary", b"x", 1, -3) > 0


def attack_faults_of_its_own():
    """any service of the kernel"""
    return call(323, 1) >= 0


def attack_locked_memory():
    return libc.mlock(ctypes.create_string_buffer(4096), 4096) == 0


def attack_messages_that_stay():
    """memory that stays|any service"""
    return libc.msgget(KEY, 0o1600) >= 0 and libc.msgsnd(libc.msgget(KEY, 0), struct.pack("l9s", 1, b"x"), 1, 0) == 0


def attack_memory_that_stays():
    """memory that stays|any service"""
    return libc.shmget(KEY, 1 << 20, 0o1666) >= 0


def attack_a_thousand_files():
    """files are counted"""
    count = 0
    for i in range(1000):
        try:
            os.close(os.open(f"f{i}", os.O_CREAT))
            count += 1
        except OSError:
            break
    return count > 96


def attack_more_memory():
    return len(bytearray(1 << 30)) > 0


def attack_namespaces():
    """any service of the kernel"""
    return libc.unshare(0x10000000) == 0


def attack_a_folder_for_all():
    """files that"""
    for place in ("/tmp", "/var/tmp", "/dev/shm", os.path.dirname(os.getcwd())):
        try:
            os.close(os.open(f"{place}/{MARK}", os.O_WRONLY | os.O_CREAT))
            return True
        except OSError:
            pass
    return False


def attack_reads_the_sandboxs_sources():
    """files that|own sources"""
    import inside.judge

    return os.open(inside.judge.__file__, os.O_RDONLY) >= 0


def attack_calls_of_32_bits():
    """any service"""
    import mmap

    code = mmap.mmap(-1, 4096, prot=7)
    code.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() > 0
