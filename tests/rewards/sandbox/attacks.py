"""Programs that mean harm, and how a test of theirs ends. {canary} is a file outside, {folder} its folder; both are
everybody's to write. Kinds after a | are right too: levels differ in how they refuse (a file that may not be read, or
is not there), interpreters in how they break.
"""

from __future__ import annotations

from dataclasses import dataclass

TESTS = "assert candidate(2) == 27182"
SOCKET = """
import json, os, socket, stat, struct, time
def channel():
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return fd
        except OSError:
            pass
def frame(message):
    raw = json.dumps(message).encode()
    return struct.pack('!I', len(raw)) + raw
"""
_SEND = "def send(message): socket.socket(fileno=channel()).sendall(frame(message)); time.sleep(9)\n"


@dataclass(frozen=True)
class Attack:
    kinds: str
    code: str
    tests: str = TESTS


def body(lines: str, *, first: str = "") -> str:
    """A candidate with these lines; ends with the right answer, so only what stops the lines stops it."""
    inner = "\n".join("    " + line for line in lines.strip("\n").split("\n"))
    return f"{first}\ndef candidate(x):\n{inner}\n    return 27182\n"


OWN = "import os\nwith open('own', 'w') as file: file.write('x')\n"
LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None)"

TIME = {
    "endless loop": Attack("timeout", body("while True: pass")),
    "endless loop at import": Attack("timeout", "while True: pass"),
    "sleep": Attack("timeout", body("import time; time.sleep(60)")),
    "swallows every exception": Attack(
        "timeout", body("while True:\n    try:\n        while True: pass\n    except BaseException: pass")
    ),
    "ignores every signal": Attack(
        "timeout",
        body(
            """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass"""
        ),
    ),
    "endless regular expression": Attack("timeout", body("import re; re.match('(a+)+$', 'a' * 50 + 'b')")),
    "huge power": Attack("timeout|memory", body("10 ** 10 ** 9")),
    "message of an exception never ends": Attack(
        "timeout", body("class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E")
    ),
    "endless items": Attack(
        "timeout", "import itertools\ndef candidate(x): return itertools.count()", "assert list(candidate(2)) == [1]"
    ),
    "slow drip": Attack(
        "timeout",
        body(
            "import time\nos.write(channel(), struct.pack('!I', 900))\nwhile True:\n    os.write(channel(), b' ')\n"
            "    time.sleep(0.05)",
            first=SOCKET,
        ),
    ),
    "a thread goes on, the result comes": Attack(
        "passed",
        body("import threading, time\nthreading.Thread(target=lambda: time.sleep(60), daemon=False).start()"),
    ),
    "a busy thread goes on": Attack(
        "passed|timeout",
        body("import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin).start()"),
    ),
    "recursion": Attack("error", "def candidate(x): return candidate(x)"),
    "recursion without a limit": Attack(
        "memory|crashed|error|timeout", body("import sys; sys.setrecursionlimit(10 ** 9)\nreturn candidate(x)")
    ),
    "nested too deeply to compile": Attack("error|memory", "def candidate(x): return " + "(" * 5000 + "1" + ")" * 5000),
    "nested lists too deep to send": Attack("error", body("y = []\nfor _ in range(100000): y = [y]\nreturn y")),
}

SPACE = {
    "one big list": Attack("memory", body("[0] * 10 ** 10")),
    "bytes of a terabyte": Attack("memory", body("bytearray(1 << 40)")),
    "growing list": Attack("memory|timeout", body("y = []\nwhile True: y.append(' ' * 1000000)")),
    "memory that is only mapped": Attack("error|memory", body("import mmap; mmap.mmap(-1, 1 << 34)")),
    "huge output": Attack(
        "passed", body("import sys\nfor _ in range(100): print('x' * 100000)\nsys.stderr.write('x' * 10**6)")
    ),
    "huge result": Attack("error", "def candidate(x): return 'x' * 10 ** 7"),
    "huge message of an exception": Attack("error", body("raise ValueError('x' * 10 ** 7)")),
    "huge file": Attack(
        "error", body("with open('big', 'wb') as file:\n    for _ in range(100): file.write(bytes(1 << 20))")
    ),
    "many files": Attack(
        "error|crashed", body("for i in range(10 ** 7):\n    with open(str(i), 'wb') as file: file.write(bytes(1000))")
    ),
    "a thread bomb": Attack(
        "error|memory",
        body("import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()"),
    ),
}

EXITS = {
    "os._exit": Attack("crashed", body("import os; os._exit(0)")),
    "os._exit at import": Attack("crashed", "import os; os._exit(0)"),
    "sys.exit": Attack("error", body("import sys; sys.exit(0)")),
    "sys.exit at import": Attack("error", "raise SystemExit(0)"),
    "sys.exit behind a test's except": Attack(
        "error",
        body("import sys; sys.exit(0)"),
        "try:\n    candidate(2)\nexcept Exception:\n    pass\nassert 1 == 1",
    ),
    "sleep behind a test's bare except": Attack(
        "timeout", body("import time; time.sleep(60)"), "try:\n    candidate(2)\nexcept:\n    pass\nassert 1 == 1"
    ),
    "os._exit behind a test's bare except": Attack(
        "crashed", body("import os; os._exit(0)"), "try:\n    candidate(2)\nexcept:\n    pass\nassert 1 == 1"
    ),
    "os._exit behind a test's except": Attack(
        "crashed", body("import os; os._exit(0)"), "try:\n    candidate(2)\nexcept Exception:\n    pass\nassert 1 == 1"
    ),
    "KeyboardInterrupt": Attack("error", body("raise KeyboardInterrupt")),
    "a false AssertionError": Attack("error", body("raise AssertionError('passed')")),
    "an exception called passed": Attack("error", body("raise type('passed', (Exception,), {})('passed')")),
    "exception with a lying name": Attack(
        "error|crashed", body("E = type('E', (Exception,), {})\nE.__name__ = 'AssertionError'\nraise E('passed')")
    ),
    "exception with an evil message": Attack(
        "error", body("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E")
    ),
    "abort": Attack("crashed", body("import os; os.abort()")),
    "segmentation fault": Attack("crashed", body("import ctypes; ctypes.string_at(1)")),
    "stops itself": Attack("forbidden", body("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")),
    "stops its thread": Attack(
        "forbidden", body("import signal, threading; signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)")
    ),
    "asks for input": Attack("error", body("input()")),
}

PROCESSES = {
    "fork": Attack("forbidden", body("import os; os.fork()")),
    "fork bomb": Attack("forbidden", body("import os\nwhile True: os.fork()")),
    "fork bomb that does not give up": Attack(
        "timeout", body("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    ),
    "daemon": Attack(
        "forbidden",
        body("import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True: pass"),
    ),
    "subprocess": Attack("forbidden", body("import subprocess; subprocess.run(['true'])")),
    "shell": Attack("error|failed", body("import os\nassert os.system('true') == 0")),
    "posix_spawn": Attack("forbidden|error", body("import os, sys; os.posix_spawn('/bin/sh', ['sh'], {})")),
    "exec": Attack("forbidden|error", body("import os; os.execv('/bin/sh', ['sh', '-c', 'sleep 60'])")),
    "multiprocessing": Attack(
        "forbidden|error",
        body("import multiprocessing as m; p = m.get_context('fork').Process(target=print); p.start()"),
    ),
    "kills the parent": Attack("forbidden", body("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")),
    "kills everybody": Attack("forbidden", body("import os, signal; os.kill(-1, signal.SIGKILL)")),
    "kills process 1": Attack("forbidden", body("import os, signal; os.kill(1, signal.SIGKILL)")),
    "kills its group": Attack("forbidden", body("import os, signal; os.killpg(0, signal.SIGKILL)")),
    "ctypes kills the parent": Attack("failed", body("if libc.kill(os.getppid(), 9) != 0: return -1", first=LIBC)),
    "ctypes traces the parent": Attack(
        "failed", body("if libc.ptrace(16, os.getppid(), 0, 0) != 0: return -1", first=LIBC)
    ),
    "ctypes reads the parent's memory": Attack(
        "failed",
        body(
            "y = (ctypes.c_char * 99)()\nif libc.process_vm_readv(os.getppid(), y, 1, y, 1, 0) < 0: return -1",
            first=LIBC,
        ),
    ),
    "outlives its parent": Attack("failed", body("if libc.prctl(1, 0, 0, 0, 0) != 0: return -1", first=LIBC)),
    "namespaces": Attack("failed", body("if libc.unshare(0x10000000) != 0: return -1", first=LIBC)),
    "becomes root": Attack("forbidden|error", body("import os; os.setuid(0)")),
    "lifts its limits": Attack(
        "error|forbidden", body("import resource as r; r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY,) * 2)")
    ),
    "slows the parent": Attack("forbidden", body("import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)")),
}

FILES = {
    "reads a file": Attack("forbidden|error", body("open({canary!r}).read()")),
    "writes a file": Attack("forbidden|error", body("open({canary!r}, 'w').write('x')")),
    "removes a file": Attack("forbidden|error", body("import os; os.remove({canary!r})")),
    "renames a file": Attack("forbidden|error", body("import os; os.rename({canary!r}, {canary!r} + 'x')")),
    "truncates a file": Attack("forbidden|error", body("import os; os.truncate({canary!r}, 0)")),
    "changes modes": Attack("forbidden|error", body("import os; os.chmod({canary!r}, 0)")),
    "changes times": Attack("forbidden|error", body("import os; os.utime({canary!r}, (0, 0))")),
    "removes a folder": Attack("forbidden|error", body("import shutil; shutil.rmtree({folder!r})")),
    "makes a file outside": Attack("forbidden|error", body("open({folder!r} + '/x', 'w')")),
    "makes a folder outside": Attack("forbidden|error", body("import os; os.mkdir({folder!r} + '/x')")),
    "writes through a symbolic link": Attack(
        "forbidden", body("import os; os.symlink({canary!r}, 'way'); open('way', 'w').write('x')")
    ),
    "hard link": Attack("forbidden", body("import os; os.link({canary!r}, 'way')")),
    "reads passwords": Attack("forbidden|error", body("open('/etc/passwd').read()")),
    "lists the machine": Attack("forbidden", body("import os; os.listdir('/')")),
    "reads the parent's environment": Attack(
        "forbidden|error", body("import os; open(f'/proc/{{os.getppid()}}/environ').read()")
    ),
    "lists its own descriptors": Attack("forbidden|error", body("import os; os.listdir('/proc/self/fd')")),
    "writes its own memory": Attack("forbidden|error", body("open('/proc/self/mem', 'r+b')")),
    "reads process 1": Attack("forbidden|error", body("open('/proc/1/cmdline').read()")),
    "a device": Attack("forbidden|error", body("open('/dev/kmsg').read()")),
    "changes the root": Attack("forbidden", body("import os; os.chroot('.')")),
    "a shared segment": Attack(
        "forbidden|error", body("from multiprocessing import shared_memory as s; s.SharedMemory(create=True, size=99)")
    ),
    "a file in memory": Attack("error|forbidden", body("import os; os.memfd_create('x')")),
    "reads the judge's source": Attack("forbidden|error", body("import inside.judge as j; open(j.__file__).read()")),
}

NETWORK = {
    "socket": Attack("forbidden", body("import socket; socket.socket()")),
    "datagrams": Attack("forbidden", body("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")),
    "local socket": Attack("forbidden", body("import socket; socket.socket(socket.AF_UNIX)")),
    "web": Attack("error|forbidden", body("from urllib.request import urlopen; urlopen('http://127.0.0.1:9')")),
}

LIES = {
    "equal to everything": Attack("error", body("class E:\n    def __eq__(self, o): return True\nreturn E()")),
    "a number equal to everything": Attack(
        "failed", body("class E(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\nreturn E(0)")
    ),
    "a text equal to everything": Attack(
        "failed", body("class E(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\nreturn E('')")
    ),
    "a dict that lies about itself": Attack(
        "failed",
        body("class E(dict):\n    def items(self): return [1]\n    def __eq__(self, o): return True\nreturn E()"),
    ),
    "says it is a number": Attack(
        "error", body("class E:\n    __class__ = int\n    def __eq__(self, o): return True\nreturn E()")
    ),
    "unpickles to something": Attack(
        "error", body("class E:\n    def __reduce__(self): return eval, ('27182',)\nreturn E()")
    ),
    "deep pickles": Attack("forbidden", body('import pickle; pickle.loads(b"cos\\nfork\\n(tR.")')),
    "prints a verdict": Attack("failed", body('print(\'["test", 0, "passed", null, "", null]\')\nreturn 1')),
    "patches builtins": Attack(
        "failed|crashed",
        body("import builtins\nfor n in ('isinstance', 'len', 'all'): setattr(builtins, n, lambda *a: True)\nreturn 1"),
    ),
    "patches AssertionError": Attack(
        "error", body("import builtins\nclass A(Exception): pass\nbuiltins.AssertionError = A\nraise A")
    ),
    "patches json": Attack(
        "crashed", body('import json\njson.dumps = lambda *a, **k: \'["test",0,"passed"]\'\nreturn 1')
    ),
    "patches the wire": Attack(
        "failed", body("import sys\nw = sys.modules['inside.wire']\nw.encode = lambda *a: 1\nreturn 1")
    ),
    "patches the judge that it can see": Attack(
        "error|forbidden", body("from inside import judge\njudge._outcome = lambda e: judge.PASSED\nreturn 1")
    ),
    "traces what calls it": Attack(
        "failed", body("import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(print)\nreturn 1")
    ),
    "walks the frames": Attack(
        "failed",
        body(
            """
import sys
frame = sys._getframe()
while frame:
    if '27' + '182' in repr(frame.f_locals): return 27180 + 2
    frame = frame.f_back
return 1"""
        ),
    ),
    "searches all objects": Attack(
        "failed",
        body(
            """
import gc
wanted = x * 13591
for thing in gc.get_objects():
    if isinstance(thing, dict) and wanted in thing.values() or isinstance(thing, (list, tuple)) and wanted in thing:
        return wanted
return 1"""
        ),
    ),
    "exits at the end with a verdict": Attack(
        "crashed", body("os.write(channel(), frame(['test', 0, 'passed', None, '', None]))\nos._exit(0)", first=SOCKET)
    ),
    "lends what it never had": Attack(
        "crashed|error", body("os.write(channel(), frame(['value', 1, ['h', 'x', 7], []]))\nreturn 1", first=SOCKET)
    ),
    "garbage on the socket": Attack("crashed", body("os.write(channel(), b'\\0\\0\\0\\5hello')", first=SOCKET)),
    "huge length": Attack("crashed", body("os.write(channel(), b'\\xff' * 99)", first=SOCKET)),
    "nested JSON": Attack(
        "crashed",
        body(
            "raw = b'[' * 900000\nsocket.socket(fileno=channel()).sendall(struct.pack('!I', len(raw)) + raw)",
            first=SOCKET,
        ),
    ),
    "objects of JSON": Attack(
        "crashed", body("os.write(channel(), frame(['value', 1, {'a': 1}, []]))\nreturn 1", first=SOCKET)
    ),
    "reply to another call": Attack(
        "crashed", body("os.write(channel(), frame(['value', 7, 27182, []]))\nreturn 1", first=SOCKET)
    ),
    "changes what it was not given": Attack(
        "crashed", body("os.write(channel(), frame(['value', 1, None, [[5, ['l']]]]))\nreturn 1", first=SOCKET)
    ),
    "closes the socket": Attack("crashed", body("import os; os.closerange(3, 64)\nwhile True: pass")),
    "colliding hashes": Attack(
        "failed|timeout",
        "def candidate(x): return {i * (2 ** 61 - 1) for i in range(1, 400)}",
        "assert candidate(2) == {1}",
    ),
    "a million colliding hashes": Attack(
        "failed|timeout|crashed|error",
        body(
            "parts = ','.join('[\"i\",\"%x\"]' % ((2 ** 61 - 1) * (i + 5)) for i in range(40000))\n"
            'raw = (\'["value",1,["s",%s],[]]\' % parts).encode()\n'
            "socket.socket(fileno=channel()).sendall(struct.pack('!I', len(raw)) + raw)",
            first=SOCKET,
        ),
    ),
    "a number that makes the test endless": Attack(
        "timeout|memory", "def candidate(x): return 10 ** 9", "assert sum(i * i for i in range(candidate(2))) == 1"
    ),
    "a number that makes one step of the test endless": Attack(
        "timeout|memory", "def candidate(x): return 10 ** 10", "assert 7 ** candidate(2) == 1"
    ),
    "a number that takes the test's memory": Attack(
        "memory", "def candidate(x): return 10 ** 10", "assert [0] * candidate(2) == 1"
    ),
    "a null byte": Attack("error", "def candidate(x): return 27182\0"),
    "half of a surrogate pair": Attack("error", "x = '\ud800'\ndef candidate(x): return 27182"),
    "half of a surrogate pair in an exception": Attack("error", r"def candidate(x): raise ValueError('\ud800')"),
    "an object as a callable": Attack("failed", "def candidate(x): return object()", "assert callable(candidate(2))"),
    "an object as a container": Attack(
        "failed",
        "def candidate(x): return object()",
        "from collections.abc import Container, Iterable, Sized\n"
        "assert isinstance(candidate(2), (Container, Iterable, Sized))",
    ),
    "the end of an iteration": Attack(
        "error",
        "def candidate(x): raise StopIteration",
        "assert all(map(lambda one: candidate(one) == 27182, [1, 2]))",
    ),
    "nonsense about an exception": Attack(
        "crashed", body("send(['raised', 1, [[], '', None, []]])", first=SOCKET + _SEND)
    ),
    "half of a surrogate pair as a result": Attack("failed", r"def candidate(x): return '\ud800'"),
}

OTHERS = {
    "a signal by way of a descriptor": Attack(
        "forbidden", body("import fcntl\na, b = socket.socketpair()\nfcntl.fcntl(a, 8, os.getppid())", first=SOCKET)
    ),
    "a signal of its choice": Attack(
        "forbidden", body("import fcntl\na, b = socket.socketpair()\nfcntl.fcntl(a, 10, 9)", first=SOCKET)
    ),
    "an owner by ioctl": Attack(
        "forbidden",
        body(
            "import fcntl\na, b = socket.socketpair()\nfcntl.ioctl(a, 0x8901, struct.pack('i', os.getppid()))",
            first=SOCKET,
        ),
    ),
    "a datagram to anybody": Attack(
        "forbidden", body("a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", first=SOCKET)
    ),
    "a raw socket to anybody": Attack(
        "forbidden", body("a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)", first=SOCKET)
    ),
    # On its own file, where nothing but the filter of system calls stands in the way.
    "a file made empty": Attack("forbidden", body(OWN + "os.truncate('own', 0)")),
    "a file made empty by opening it to read": Attack(
        "forbidden", body(OWN + "os.open('own', os.O_RDONLY | os.O_TRUNC)")
    ),
    "attributes of a file": Attack(
        "forbidden", body(OWN + "import fcntl\nfcntl.ioctl(os.open('own', os.O_RDONLY), 0x40086602, b'\\0' * 8)")
    ),
    "a parent's death that is not heard of": Attack(
        "failed",
        LIBC + "\ndef candidate(x): return libc.syscall(157, ctypes.c_ulong(0x100000001), ctypes.c_ulong(0), 0, 0, 0)",
        "assert candidate(2) == 0",
    ),
}

ATTACKS = OTHERS | TIME | SPACE | EXITS | PROCESSES | FILES | NETWORK | LIES
