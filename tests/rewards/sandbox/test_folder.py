"""The folder of a case: honest code works in it at every level, and what is in it is limited, and gone afterwards."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from coevolve.rewards.sandbox import Program
from coevolve.rewards.sandbox.inside import folder
from coevolve.rewards.sandbox.inside.counter import FILES
from coevolve.rewards.sandbox.isolation import offered
from coevolve.rewards.sandbox.split import split
from coevolve.rewards.sandbox.worker import PROCESSES, Limits, Worker

LEVELS = ("bubblewrap", "plain")
LAYERS = {
    "all": {},
    "no seccomp": {"seccomp": False, "counted": False},
    "not counted": {"counted": False},
    "no Landlock": {"landlock": 0},
    "Landlock 1": {"landlock": 1},
}


@pytest.fixture(scope="module", params=[(level, lacks) for level in LEVELS for lacks in LAYERS], ids=" ".join)
def worker(request):
    level, lacks = request.param
    made = Worker(replace(offered(level), **LAYERS[lacks]), Limits(timeout=10.0, memory_mb=256))
    try:
        assert run(made, "def f(): return 1", "assert f() == 1") == ["passed"]
    except OSError as error:
        pytest.skip(str(error))
    yield made
    made.close()


def run(worker, code, tests):
    return [verdict.kind for verdict in worker.run(Program(code, tests, "f"), split(tests))]


def program(lines):
    return "def f():\n" + "".join(f"    {line}\n" for line in lines.strip("\n").split("\n"))


HONEST = {
    "a file here": "with open('x', 'w') as file: file.write('a')\nreturn open('x').read() == 'a'",
    "a temporary folder": """
import os, tempfile
with tempfile.TemporaryDirectory() as place:
    with open(os.path.join(place, 'x'), 'w') as file: file.write('a')
    os.makedirs(os.path.join(place, 'a', 'b'))
    found = sorted(os.listdir(place))
return found == ['a', 'x'] and not os.path.exists(place)""",
    "a named temporary file": """
import os, tempfile
with tempfile.NamedTemporaryFile('w+', suffix='.txt') as file:
    file.write('abc')
    file.flush()
    found = open(file.name).read()
return found == 'abc' and not os.path.exists(file.name)""",
    "a nameless temporary file": """
import tempfile
with tempfile.TemporaryFile() as file:
    file.write(b'abc')
    file.seek(0)
    return file.read() == b'abc'""",
    "a spooled file": """
import tempfile
with tempfile.SpooledTemporaryFile(max_size=2) as file:
    file.write(b'abc')
    file.seek(0)
    return file.read() == b'abc'""",
    "mkstemp": """
import os, tempfile
number, path = tempfile.mkstemp()
os.write(number, b'abc')
os.close(number)
found = os.stat(path).st_size
os.remove(path)
return found == 3""",
    "paths": """
from pathlib import Path
import shutil
here = Path('a', 'b')
here.mkdir(parents=True)
(here / 'x').write_text('abc')
(here / 'x').rename(here / 'y')
shutil.copy('a/b/y', 'z')
shutil.copy2('a/b/y', 'a/z')
shutil.copytree('a', 'c')
shutil.move('z', 'a/b/z')
found = sorted(map(str, Path('.').rglob('*')))
shutil.rmtree('a')
shutil.rmtree('c')
return found == ['a', 'a/b', 'a/b/y', 'a/b/z', 'a/z', 'c', 'c/b', 'c/b/y', 'c/z'] and not list(Path('.').iterdir())""",
    "replaced and cut": """
import os
for name in 'xy':
    with open(name, 'w') as file: file.write(name * 9)
os.replace('x', 'y')
with open('y', 'r+') as file: file.truncate(2)
return open('y').read() == 'xx' and not os.path.exists('x')""",
    "many files, one after the other": """
import os
for i in range(300):
    with open('x', 'w') as file: file.write(str(i))
    os.remove('x')
return True""",
    "csv, json, zip": """
import csv, json, zipfile
with open('x.csv', 'w', newline='') as file: csv.writer(file).writerows([[1, 2], [3, 4]])
with open('x.json', 'w') as file: json.dump({'a': 1}, file)
with zipfile.ZipFile('x.zip', 'w') as file: file.write('x.csv')
return zipfile.ZipFile('x.zip').namelist() == ['x.csv'] and json.load(open('x.json')) == {'a': 1}""",
    "mapped": """
import mmap
with open('x', 'w+b') as file:
    file.write(bytes(4096))
    file.flush()
    with mmap.mmap(file.fileno(), 4096) as space: space[:2] = b'ab'
return open('x', 'rb').read(2) == b'ab'""",
    "threads and a loop of events": """
import asyncio, threading
from concurrent.futures import ThreadPoolExecutor
async def one(): await asyncio.sleep(0.001); return 1
with ThreadPoolExecutor(2) as pool: found = list(pool.map(str, [1, 2]))
return asyncio.run(one()) == 1 and found == ['1', '2']""",
}


@pytest.mark.parametrize("lines", HONEST.values(), ids=HONEST)
def test_honest_code(worker, lines):
    assert run(worker, program(lines), "assert f() == True") == ["passed"]
    assert run(worker, program("import os\nreturn os.listdir('.')"), "assert f() == []") == ["passed"]


def test_files_are_limited_and_gone_afterwards(worker):
    lines = """
import os, threading, time
made = []
def make(folder):
    for i in range(200):
        try:
            number = os.open(f'{folder}/{i}', os.O_CREAT)
        except OSError: return
        os.close(number)
        made.append(1)
for i in range(4):
    try: os.mkdir(str(i))
    except OSError: return len(made)
threads = [threading.Thread(target=make, args=(i,)) for i in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if len(made) > 96: time.sleep(5)
return len(made)"""
    (kind,) = run(worker, program(lines), f"assert 32 < f() <= {FILES + PROCESSES}")
    assert kind == "passed" if worker.isolation.counted else kind in ("passed", "crashed")
    assert run(worker, program("import os\nreturn os.listdir('.')"), "assert f() == []") == ["passed"]


@pytest.mark.parametrize(
    "lines",
    [
        "import os\nos.mkdir('x', 0o300)\nfor i in range(40): os.close(os.open(f'x/{i}', os.O_CREAT))",
        "import os\nos.mkdir('x', 0)",
        "import os\nfor i in range(60):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)",
        "import os\nos.open('x', os.O_CREAT, 0)\nos.open(' ', os.O_CREAT)\nos.open('\\n', os.O_CREAT)",
    ],
    ids=["hidden", "shut", "deep", "odd names"],
)
def test_what_a_case_hides_is_gone_afterwards(worker, lines):
    assert run(worker, program(lines + "\nreturn 1"), "assert f() == 1")[0] in (
        "passed",
        "error",
        "crashed",
        "forbidden",
    )
    assert run(worker, program("import os\nreturn os.listdir('.')"), "assert f() == []") == ["passed"]
    place = worker._temp if worker.isolation.level == "plain" else None
    assert place is None or os.listdir(Path(place, "guest")) == []


def test_an_unbounded_depth_is_emptied(tmp_path):
    """Where nothing counts, a case gets deeper than a path is long, and than Python recurses."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert folder.count(str(tmp_path), 64) > 64
    folder.empty(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_links_are_removed_and_not_followed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "canary").write_text("sings")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "way").symlink_to(tmp_path / "outside")
    assert folder.count(str(tmp_path / "own"), 64) == 1
    folder.empty(str(tmp_path / "own"))
    assert os.listdir(tmp_path / "own") == [] and (tmp_path / "outside" / "canary").read_text() == "sings"
