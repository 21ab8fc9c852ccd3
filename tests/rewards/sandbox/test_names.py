"""Names that the tests bind are theirs: the solution is never asked for them, however they are bound, come what may."""

from __future__ import annotations

import pytest

from coevolve.rewards.sandbox import Program, Sandbox
from coevolve.rewards.sandbox.split import bound, split

CODE = "def candidate(x):\n    if x == 1:\n        raise ValueError\n    return 'mine'\nlimit = 'mine'\n"
BINDINGS = {
    "assignment": "limit = 10",
    "several targets": "a, (limit, *b) = 1, (10, 2)",
    "annotated": "limit: int = 10",
    "only annotated": "limit: int",
    "augmented": "limit += 1",
    "walrus": "print(limit := 10)",
    "walrus in a comprehension": "print([limit := i for i in range(11)])",
    "global walrus in a comprehension": "def bind():\n    global limit\n    [limit := i for i in range(11)]\nbind()",
    "for": "for limit in [10]: pass",
    "with": "import contextlib\nwith contextlib.nullcontext(10) as limit: pass",
    "import": "import math as limit",
    "import of a module": "import limit",
    "from": "from math import pi as limit",
    "def": "def limit(): return 10",
    "class": "class limit: pass",
    "except": "try: 1 / 0\nexcept ZeroDivisionError as limit: pass",
    "except of a group": "try: 1 / 0\nexcept* ZeroDivisionError as limit: pass",
    "match": "match 10:\n    case limit: pass",
    "match of a rest": "match {'a': 1}:\n    case {'b': 1, **limit}: pass",
    "match of a star": "match [1, 10]:\n    case [1, *limit]: pass",
    "match as": "match 10:\n    case int() as limit: pass",
    "del": "limit = 10\ndel limit",
    "global": "def bind():\n    global limit\n    limit = 10\nbind()",
    "global import": "def bind():\n    global limit\n    import math as limit\nbind()",
    "global for": "def bind():\n    global limit\n    for limit in [10]: pass\nbind()",
    "in an if": "if True: limit = 10",
    "never reached": "if 0: limit = 10",
    "exec": "exec('limit = 10')",
    "globals": "globals()['limit'] = 10",
    "locals": "locals()['limit'] = 10",
    "vars": "vars()['limit'] = 10",
    "a builtin": "import builtins\nbuiltins.limit = 10",
    "async for": "async def f():\n    global limit\n    async for limit in x: pass",
}


@pytest.fixture(scope="module")
def box():
    with Sandbox(timeout=5.0, memory_mb=256, workers=1) as made:
        yield made


def verdicts(box, code, tests, **more):
    return [verdict.kind for verdict in box.run([Program(code, tests, "candidate", **more)])[0]]


@pytest.mark.parametrize("binding", BINDINGS.values(), ids=BINDINGS)
def test_a_name_that_a_raising_call_leaves_unbound(box, binding):
    tests = f"got = candidate(1)\n{binding}\nassert 1 == 1 + 0\nassert candidate(2) == limit"
    assert verdicts(box, CODE, tests) == ["error", "error"]
    in_check = "def check(candidate):\n" + "".join(f"    {line}\n" for line in tests.split("\n"))
    assert verdicts(box, CODE, in_check) == ["error", "error"]


@pytest.mark.parametrize("binding", ["limit = 10", "def use():\n    global limit\n    limit = 10"])
def test_a_name_that_the_prelude_binds(box, binding):
    prelude = f"if 0:\n    limit = 10\ndef use(): pass\n{binding}\n"
    tests = "candidate(1)\nuse()\nassert 1 == 1 + 0\nassert candidate(2) == limit"
    assert "passed" not in verdicts(box, CODE, tests, prelude=prelude)
    assert "limit" in bound(prelude)


def test_names_of_a_star_import(box):
    code = CODE + "def floor(x): return 'mine'\n"
    tests = "candidate(1)\nfrom math import *\nassert floor(2.5) == 2\nassert candidate(2) == floor(2.5)"
    assert verdicts(box, code, tests) == ["error", "error"]
    assert verdicts(box, "def candidate(x): return 2", "from math import *\nassert floor(2.5) == candidate(1)") == [
        "passed"
    ]


def test_names_that_only_a_scope_inside_binds_are_asked_for():
    asked = {
        "assert [n for n in range(3)] == candidate(n)": {"candidate", "n", "range"},
        "assert (lambda n: n)(1) == candidate(n)": {"candidate", "n"},
        "def f(n):\n    m = n\n    return m\nassert f(1) == candidate(m)": {"candidate", "m"},
        "class A:\n    limit = limit\nassert A.limit == candidate(1)": {"candidate", "limit"},
        "x.y = 1\nz[0] = 2\nassert candidate(x) == z": {"candidate", "x", "z"},
    }
    assert {tests: {*split(tests).names} for tests in asked} == asked


def test_honest_tests_still_read_what_the_solution_defines(box):
    code = "LIMIT = 3\nclass P: pass\ndef helper(x): return x + LIMIT\ndef candidate(x): return helper(x)\n"
    tests = "n = 2\nassert candidate(n) == n + LIMIT\nassert helper(n) == 5\nassert P()"
    assert verdicts(box, code, tests) == ["passed"] * 3


def test_a_wrapper_of_the_tests_outlives_a_guest(box):
    """Before, the guest that follows a dead one took the tests' own ``candidate`` away."""
    code = "import os\ndef f(x):\n    if x == 1:\n        os._exit(0)\n    return 'mine'\n"
    tests = "def candidate(x): return f(x) == 3\nassert candidate(2) == True\nassert candidate(1)\nassert candidate(2)"
    found = box.run([Program(code, tests, "f")])[0]
    assert [one.kind for one in found] == ["failed", "crashed", "failed"]


@pytest.mark.parametrize(
    "test",
    [
        "assert candidate(1).mark",
        "assert candidate(1)._mark",
        "assert candidate(1)._judge",
        "assert candidate(1)._truth",
        "thing = candidate(1)\nthing._truth = True\nassert thing",
        "thing = candidate(1)\nthing.right = True\nassert thing.right",
        "thing = candidate(1)\nthing[0] = True\nassert thing[0]",
        "thing = candidate(1)\ndel thing._truth\nassert not thing",
        "assert not hasattr(candidate(1), 'x') and candidate(1).x",
    ],
)
def test_the_judge_answers_for_no_attribute_of_the_solutions_objects(box, test):
    code = "class P:\n    right = mark = x = True\n    def __bool__(self): return False\ndef candidate(x): return P()"
    assert verdicts(box, code, test) == ["error"]
