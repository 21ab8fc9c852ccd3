"""Verdicts on honest and on broken programs, whatever the level."""

from __future__ import annotations

import os
import resource

import pytest

from coevolve.rewards.sandbox import Program, Sandbox, Verdict, count_tests


@pytest.fixture(scope="module")
def box():
    with Sandbox(timeout=2.0, memory_mb=256, workers=2) as made:
        yield made


def verdicts(box, code, tests, entry="f", **more):
    return box.run([Program(code, tests, entry, **more)])[0]


def kinds(box, code, tests, entry="f", **more):
    return [verdict.kind for verdict in verdicts(box, code, tests, entry, **more)]


SIX = """def f(x):
    if x == 2:
        raise ValueError("two")
    if x == 3:
        while True: pass
    if x == 4:
        return [0] * 10 ** 10
    if x == 5:
        return open("/etc/passwd").read()
    if x == 6:
        import os
        os._exit(0)
    return x
"""


def test_each_way_to_end(box):
    tests = (
        "assert f(0) == 0\nassert f(1) == 2\n"
        + "".join(f"assert f({x}) == 1\n" for x in (2, 4, 6, 3))
        + "f(7)\nassert f(8) == 8"
    )
    found = verdicts(box, SIX, tests)
    assert [v.kind for v in found] == ["passed", "failed", "error", "memory", "crashed", "timeout", "passed"]
    assert found[2] == Verdict("error", "assert f(2) == 1", "ValueError", "two", 3)
    assert found[3].error == "MemoryError" and found[3].line == 7
    assert found[1] == Verdict("failed", "assert f(1) == 2", "AssertionError", "", None)


def test_a_forbidden_file(box):
    found = kinds(box, "def f(x):\n    import os\n    os.listdir('/')", "assert f(5) == 1")
    assert found == ["forbidden"]


def test_a_test_loops_for_ever_and_the_next_goes_on(box):
    assert kinds(box, "def f(x):\n    while x: pass\n    return 1", "assert f(1) == 1\nassert f(0) == 1") == [
        "timeout",
        "passed",
    ]


def test_three_dead_guests_are_enough(box):
    code = "import os\ndef f(x):\n    if x: os._exit(1)\n    return 1"
    tests = "".join(f"assert f({x}) == 1\n" for x in (0, 1, 1, 0, 1, 0, 0))
    assert kinds(box, code, tests) == ["passed", "crashed", "crashed", "passed", "crashed", "crashed", "crashed"]


@pytest.mark.parametrize(("limits", "most"), [({"timeout": 1.0}, 3), ({"timeout": 9.0, "program_timeout": 2.0}, 2)])
def test_all_tests_together_have_a_limit(limits, most):
    code = "import time\ndef f(x):\n    time.sleep(0.4)\n    return 1"
    with Sandbox(workers=1, **limits) as box:
        found = kinds(box, code, "assert f(1) == 1\n" * 9)
    passed = found.count("passed")
    assert most - 1 <= passed <= most / 0.4
    assert found == ["passed"] * passed + ["timeout"] * (9 - passed)


def test_a_limit_for_the_program_holds_while_it_loads():
    with Sandbox(timeout=60.0, program_timeout=0.5, workers=1) as box:
        assert kinds(box, "while True: pass", "assert f(1) == 1\n" * 3) == ["timeout"] * 3


def test_stop_at_the_first_failure_when_asked():
    code = "def f(x):\n    if x == 3:\n        raise ValueError\n    return x"
    tests = "".join(f"assert f({x}) == {x}\n" for x in (1, 2, 3, 4, 5))
    with Sandbox(timeout=5.0, workers=1, stop_at_failure=True) as box:
        assert kinds(box, code, tests) == ["passed", "passed", "error", "skipped", "skipped"]
        assert kinds(box, "import os\ndef f(x): os._exit(1)", tests) == ["crashed"] + ["skipped"] * 4
        assert kinds(box, "def f(x): return x", tests) == ["passed"] * 5


@pytest.mark.parametrize(
    ("code", "error", "line"),
    [
        ("def f(x)\n    return x", "SyntaxError", 1),
        ("x = 1\n\nraise KeyError('a')", "KeyError", 3),
        ("def g(x): return x", "NameError", None),
        ("", "NameError", None),
        ("import numpy", "ModuleNotFoundError", 1),
        ("def f(x): return 1\0", "SyntaxError", None),
        ("# \ud800\ndef f(x): return 1", "UnicodeEncodeError", None),
    ],
)
def test_code_that_does_not_load(box, code, error, line):
    found = verdicts(box, code, "assert f(1) == 1\nassert f(2) == 2")
    assert [(v.kind, v.line) for v in found] == [("error", line)] * 2
    assert found[0].error in (error, "ValueError")  # a null byte is a ValueError in older interpreters


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\r\n    y = x\r\n    return y\r\n",
        "#" + "x" * 100000 + "\ndef f(x): return x",
        "x = 'ä漢😀'\ndef f(x): return x",
    ],
    ids=["crlf", "long", "unicode"],
)
def test_unusual_code(box, code):
    assert kinds(box, code, "assert f(1) == 1\r\nassert f('ä\\n') == 'ä\\n'\r\n") == ["passed", "passed"]


@pytest.mark.parametrize(
    "value",
    [
        "None", "True", "2 ** 64", "-(10 ** 400)", "0.1", "-0.0", "float('inf')", "1e-320", "3 + 4j", "'a\\x00\\ud800'",
        "b'\\xff'", "bytearray(b'x')", "[1, [2, []]]", "(1, (2,), ())", "{1, 'a'}", "frozenset({1})",
        "{1: 'a', (2, 3): [4]}", "{'b': 1, 'a': 2}", "range(2, 9, 3)",
        "__import__('collections').deque([1, 2])", "[None, True, 1.5, 'x']",
    ],
)  # fmt: skip
def test_plain_data_there_and_back(box, value):
    tests = f"x = {value}\nassert f(x) == x\nassert type(f(x)) is type(x)\nassert repr(f(x)) == repr(x)"
    assert kinds(box, "def f(x): return x", tests) == ["passed"] * 3


def test_not_a_number_comes_back(box):
    assert kinds(box, "def f(x): return x", "import math\nassert math.isnan(f(math.nan))") == ["passed"]


def test_subclasses_arrive_as_plain_data(box):
    code = "import collections as c\nP = c.namedtuple('P', 'x y')\ndef f(k): return [c.Counter('aab'), P(1, 2)][k]"
    tests = "assert f(0) == {'a': 2, 'b': 1}\nassert type(f(0)) is dict\nassert f(1) == (1, 2)\nassert f(0) == {}"
    assert kinds(box, code, tests) == ["passed", "passed", "passed", "failed"]


def test_objects_can_be_handed_back_and_called_only(box):
    code = (
        "class P:\n    def __init__(self, x): self.x = x\ndef f(ps): return sum(p.x for p in ps)\n"
        "def g(k): return lambda x: x + k"
    )
    tests = (
        "assert f([P(1), P(5)]) == 6\nassert g(2)(3) == 5\nassert P(1)\nassert P(1) == P(1)\nassert P(1) != 3\n"
        "assert P(1).x == 1\nassert len(P(1)) == 1\nassert {P(1)}"
    )
    assert kinds(box, code, tests) == ["passed", "passed", "passed", "error", "error", "error", "error", "error"]


def test_iterators_give_their_items(box):
    code = "def f(n):\n    for i in range(n): yield i * i\ndef g(): return map(str, [1, 2])"
    tests = (
        "assert list(f(3)) == [0, 1, 4]\nassert next(f(1)) == 0\nassert tuple(g()) == ('1', '2')\nassert [*f(2)] == [0]"
    )
    assert kinds(box, code, tests) == ["passed", "passed", "passed", "failed"]


def test_arguments_changed_in_place_come_back_if_nothing_is_returned(box):
    code = "def f(x): x.sort()\ndef g(x):\n    x.clear()\n    return []"
    tests = "a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]\nb = [2, 1]\nassert g(b) == sorted(b)"
    assert kinds(box, code, tests) == ["passed", "failed"]


def test_arguments_given_by_name_and_changed_in_place_come_back(box):
    code = "def f(x, y=()): x.extend(y); x.sort()"
    tests = "a = [3, 1]\nf(x=a)\nassert a == [1, 3]\nb = [2]\nf(b, y=[1])\nassert b == [1, 2]"
    assert kinds(box, code, tests) == ["passed", "passed"]


def test_exceptions_that_a_test_expects(box):
    code = "class Mine(KeyError): pass\ndef f(x): raise (ValueError('no') if x else Mine('k'))"
    tests = (
        "try:\n    f(1)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'no'\n"
        "try:\n    f(0)\nexcept KeyError:\n    x = 1\nassert x == 1\n"
        "try:\n    f(1)\nexcept KeyError:\n    assert 1 == 1\n"
    )
    assert kinds(box, code, tests) == ["passed", "passed", "error"]


def test_check_with_a_prelude_and_helpers_of_the_tests(box):
    prelude = "import math\ndef twice(x):\n    '''helper'''\n    return 2 * x\ndef f(x):\n    pass\n"
    tests = (
        "METADATA = {'author': 'x'}\nLIMIT = 3\n\ndef check(candidate):\n    # a comment\n    assert True, 'no test'\n"
        "    for i in range(LIMIT):\n        assert candidate(i) == twice(i)\n    text = '''\n    kept'''\n"
        "    assert len(text) == 9 and math.floor(1.5) == 1\n    assert candidate(\n        2) == 5\n\ncheck(f)\n"
    )
    found = verdicts(box, "def f(x):\n    return x + x", tests, prelude=prelude)
    assert [v.kind for v in found] == ["passed", "passed", "failed"]
    assert found[2].test == "assert candidate(\n    2) == 5"
    assert count_tests(tests) == 3


def test_setup_runs_after_the_code_and_tests_see_it(box):
    code = (
        "class Node:\n    def __init__(self, v): self.v, self.next = v, None\n"
        "def f(n): return n.v + (f(n.next) if n.next else 0)"
    )
    setup = "root = Node(1)\nroot.next = Node(2)\nsize = 2"
    assert kinds(box, code, "assert f(root) == 3\nassert size == 2\nassert f(root.next) == 2", setup=setup) == [
        "passed", "passed", "error",
    ]  # fmt: skip


def test_the_entry_point_wins_over_a_builtin_and_over_the_prelude(box):
    assert kinds(
        box, "def sum(a, b): return a * b", "assert sum(2, 5) == 10", "sum", prelude="def sum(a, b): return 0"
    ) == ["passed"]


def test_standard_modules_that_tests_name_without_importing(box):
    assert (
        kinds(
            box, "import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(4), 2)\nassert sys.maxsize > f(1)"
        )
        == ["passed"] * 2
    )


def test_a_prelude_that_does_not_run_is_the_callers_mistake(box):
    with pytest.raises(
        ValueError, match=r"prelude does not run in the sandbox: ModuleNotFoundError.*'numpy'.*begins 'import numpy'"
    ):
        kinds(box, "def f(x): return x", "assert f(1) == 1", prelude="import numpy")
    assert kinds(box, "def f(x): return x", "assert f(1) == 1") == ["passed"]


def test_tests_that_do_not_parse():
    with pytest.raises(ValueError, match=r"tests do not parse: .* they begin 'assert f\(1 =='"):
        count_tests("assert f(1 ==")


def test_tests_that_return_cannot_be_stepped_through():
    with pytest.raises(ValueError, match="tests do not parse: 'return' outside function"):
        count_tests("def check(c):\n    if c:\n        return\n    assert c(1) == 1")


def test_no_tests_give_no_verdicts(box):
    assert box.run([Program("while True: pass", "x = 1", "f")]) == [()]


def test_every_case_begins_afresh(box):
    code = (
        "import random, math\nmath.seen = getattr(math, 'seen', 0) + 1\n"
        "def f(x): return [random.random(), math.seen, hash('a')]"
    )
    first, second = box.run([Program(f"# {n}\n{code}", "assert f(1) == 0", "f") for n in (1, 2)])
    # The first number after random.seed(0).
    tests = "assert f(1)[:2] == [0.8444218515250481, 1]\nassert hash('a') == f(1)[2]"
    assert kinds(box, code, tests) == ["passed", "passed"]
    assert first == second


def test_the_environment_is_empty(box, monkeypatch):
    monkeypatch.setenv("COEVOLVE_SECRET", "x")
    with Sandbox(timeout=2.0, workers=1) as other:
        code = "import os\ndef f(): return sorted(os.environ)"
        assert kinds(other, code, "assert {*f()} <= {'LC_ALL', 'PWD', 'PYTHONHASHSEED', 'TMPDIR'}") == ["passed"]


def test_no_descriptor_is_inherited(box):
    code = (
        "import os\ndef there(fd):\n    try: return bool(os.fstat(fd))\n    except OSError: return False\n"
        "def f(): return sum(map(there, range(1000)))"
    )
    with open(__file__) as _, Sandbox(timeout=2.0, workers=1) as other:
        assert kinds(other, code, "assert f() == 4") == [
            "passed"
        ]  # input, output, errors: /dev/null; the judge's socket


def test_results_are_in_order_and_remembered(box, monkeypatch):
    programs = [Program(f"def f(): return {n}", f"assert f() == {n % 3}", "f") for n in range(6)]
    found = box.run([*programs, programs[0]])
    assert [v[0].kind for v in found] == ["passed", "passed", "passed", "failed", "failed", "failed", "passed"]
    monkeypatch.setattr("coevolve.rewards.sandbox.worker.Worker.run", None)
    assert box.run(programs) == found[:6]


@pytest.mark.parametrize("kind", ["timeout", "crashed"])
def test_a_program_that_a_busy_machine_stopped_is_tried_again(monkeypatch, kind):
    """Within one batch its copies share what was found; what ends by itself is run once."""
    right, wrong = (Program("def f(x):\n    return x", f"assert f(1) == {n}", "f") for n in (1, 2))
    asked = []

    def run(self, program, plan):
        asked.append(program)
        if program == wrong:
            return (Verdict("failed", wrong.tests),)
        return (Verdict(kind if asked.count(right) == 1 else "passed", right.tests),)

    with Sandbox(workers=1) as box:
        monkeypatch.setattr("coevolve.rewards.sandbox.worker.Worker.run", run)
        found = [[verdicts[0].kind for verdicts in box.run([right, wrong, right])] for _ in range(3)]
    assert found == [[kind, "failed", kind], ["passed", "failed", "passed"], ["passed", "failed", "passed"]]
    assert asked == [right, wrong, right]


def test_a_program_that_got_no_thread_is_tried_again(monkeypatch):
    """As the kernel counts the threads of all the user's programs, others may have left none."""
    program = Program("def f(x):\n    return x", "assert f(1) == 1", "f")
    found = [
        Verdict("error", program.tests, "RuntimeError", "can't start new thread"),
        Verdict("passed", program.tests),
    ]
    with Sandbox(workers=1) as box:
        monkeypatch.setattr("coevolve.rewards.sandbox.worker.Worker.run", lambda self, program, plan: (found.pop(0),))
        assert [box.run([program])[0][0].kind for _ in range(3)] == ["error", "passed", "passed"]


def test_what_was_asked_for_longest_ago_is_forgotten_first(monkeypatch):
    one, two, three = (Program("def f(x):\n    return x", f"assert f({n}) == {n}", "f") for n in (1, 2, 3))
    asked = []

    def run(self, program, plan):
        asked.append(program)
        return (Verdict("passed", program.tests),)

    monkeypatch.setattr("coevolve.rewards.sandbox.box.CACHED", 2)
    with Sandbox(workers=1) as box:
        monkeypatch.setattr("coevolve.rewards.sandbox.worker.Worker.run", run)
        for program in (one, two, one, three, one, three):
            box.run([program])
    assert asked == [one, two, three]


def test_what_another_thread_drops_meanwhile_is_still_told(monkeypatch):
    known, new = (Program("def f(x):\n    return x + 1", f"assert f({n}) == {n + 1}", "f") for n in (1, 2))
    with Sandbox(workers=1) as box:
        first = box.run([known])
        run = Sandbox._one

        def while_others_run(self, program):
            self._cache.clear()
            return run(self, program)

        monkeypatch.setattr(Sandbox, "_one", while_others_run)
        assert box.run([known, new])[0] == first[0]


def test_it_starts_again_after_close():
    box = Sandbox(timeout=2.0, workers=1)
    assert kinds(box, "def f(): return 1", "assert f() == 1") == ["passed"]
    box.close()
    box.close()
    assert kinds(box, "def f(): return 2", "assert f() == 2") == ["passed"]
    box.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"isolation": "none"}, r"sandbox isolation is 'none'; known: bubblewrap, plain, auto"),
        ({"timeout": 0}, r"sandbox timeout is 0; it is a number above 0"),
        ({"memory_mb": -1}, r"sandbox memory_mb is -1; it is a number above 0"),
        ({"workers": 0}, r"sandbox workers is 0; it is a number above 0"),
        ({"program_timeout": 0}, r"sandbox program_timeout is 0; it is a number above 0"),
        ({"timeout": float("nan")}, r"sandbox timeout is nan; it is a number above 0"),
        ({"timeout": float("inf")}, r"sandbox timeout is inf; it is a number above 0"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Sandbox(**settings)


def test_loading_and_each_test_have_the_limit_to_themselves() -> None:
    code = "import time\ntime.sleep(0.9)\ndef f(x):\n    time.sleep(0.9)\n    return x\n"
    with Sandbox(timeout=1.7, workers=1) as box:
        [verdicts] = box.run([Program(code, "assert f(1) == 1\nassert f(2) == 2", "f")])
    assert [verdict.kind for verdict in verdicts] == ["passed", "passed"]


def test_a_fork_of_the_trainer_has_processes_of_its_own() -> None:
    honest = Program("def f(x):\n    return x", "assert f(1) == 1", "f")
    with Sandbox(timeout=2.0, workers=1) as box:
        box.run([honest])
        servers = [process for process, _ in box._started[0]._servers]
        child = os.fork()
        if not child:
            again = box.run([Program("def f(x):\n    return 1", "assert f(1) == 1", "f")])
            box.close()
            os._exit(0 if again[0][0].kind == "passed" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [process.poll() for process in servers] == [None, None]
        assert box.run([Program("def f(x):\n    return 2", "assert f(1) == 2", "f")])[0][0].kind == "passed"


def test_many_open_files() -> None:
    low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, high), high))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with Sandbox(timeout=2.0, workers=1) as box:
            assert box.run([Program("def f(x):\n    return x", "assert f(1) == 1", "f")])[0][0].kind == "passed"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, high))
