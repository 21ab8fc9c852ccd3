"""Asserts in functions, classes and blocks of the tests: wrong code passes none of them, whatever they stand in."""

from __future__ import annotations

import pytest

from coevolve.rewards.sandbox import Program, Sandbox, count_tests
from coevolve.rewards.sandbox.split import split

RIGHT, WRONG = "def f(x):\n    return x + 1", "def f(x):\n    return 0"
SAME = "def same(a, b):\n    assert a == b\n"
NAMED = "def test_f():\n    assert f(1) == 2\n"
CALLED = {
    "a function": (SAME + "same(f(1), 2)\nsame(f(2), 3)", 2),
    "a test's own function": (NAMED + "test_f()", 1),
    "a function in check": (
        "def check(candidate):\n    def same(a, b):\n        assert a == b\n    same(candidate(1), 2)",
        1,
    ),
    "a function beside check": (SAME + "def check(candidate):\n    same(candidate(1), 2)\ncheck(f)", 1),
    "a check of two arguments": ("def check(a, b):\n    assert a == b\ncheck(f(1), 2)\ncheck(f(2), 3)", 2),
    "through another function": (SAME + "def both(x):\n    same(f(x), x + 1)\n    same(f(0), 1)\nboth(1)", 1),
    "a function in a function": ("def outer():\n    def inner():\n        assert f(1) == 2\n    inner()\nouter()", 1),
    "a method": ("class T:\n    def test(self):\n        assert f(1) == 2\nT().test()", 1),
    "in a lambda": (SAME + "list(map(lambda x: same(f(x), x + 1), range(3)))", 1),
    "collected by a decorator": (
        "tests = []\n@tests.append\ndef test_f():\n    assert f(1) == 2\n"
        "assert 1 == 1 + 0\nfor test in tests:\n    test()",
        1,
    ),
    "beside a helper that nobody needs": (SAME + "assert f(1) == 2", 1),
    "in a loop": (SAME + "for x in range(3):\n    same(f(x), x + 1)", 1),
    "in a comprehension": (SAME + "[same(f(x), x + 1) for x in range(3)]", 1),
    "by another name, behind the last test": (NAMED + "assert 1 == 1 + 0\nfor test in (test_f,):\n    test()", 1),
    "what follows the last test": ("assert 1 == 1 + 0\nif f(1) != 2:\n    raise ValueError", 1),
}


@pytest.fixture(scope="module")
def box():
    with Sandbox(timeout=5.0, memory_mb=256, workers=1) as made:
        yield made


def passed(box, code, tests):
    return [verdict.kind == "passed" for verdict in box.run([Program(code, tests, "f")])[0]]


@pytest.mark.parametrize(("tests", "count"), CALLED.values(), ids=CALLED)
def test_a_call_of_a_function_that_asserts_is_a_test(box, tests, count):
    assert passed(box, RIGHT, tests) == [True] * count
    assert passed(box, WRONG, tests) == [False] * count


NEVER = {
    "a function": (NAMED, 2),
    "a function beside an assert": ("assert f(1) == 2\n" + NAMED, 3),
    "a function that calls itself": ("def test_f(n):\n    assert f(n) == n + 1\n    test_f(n - 1)\n", 2),
    "a function called in one that is never called": (SAME + "def test_f():\n    same(f(1), 2)\n", 2),
    "a function in a function": ("def outer():\n    def inner():\n        assert f(1) == 2\nouter()", 3),
    "a function in check": ("def check(candidate):\n    def test():\n        assert candidate(1) == 2", 3),
    "a second check": ("def check(candidate):\n    assert f(1) == 2\n" * 2, 4),
    "a class": ("class TestF:\n    def test_f(self):\n        assert f(1) == 2", 3),
    "a generator": ("def go():\n    assert f(1) == 2\n    yield 1\ngo()", 2),
    "a coroutine": ("async def test_f():\n    assert f(1) == 2\ntest_f()", 2),
    "a block behind if __name__": ("if __name__ == '__main__':\n    assert f(1) == 2", 2),
    "a call behind if __name__": (NAMED + "if '__main__' == __name__ and True:\n    test_f()", 2),
    "the other branch": ("if __name__ != '__main__':\n    pass\nelse:\n    assert f(1) == 2", 4),
}


@pytest.mark.parametrize(("tests", "line"), NEVER.values(), ids=NEVER)
def test_an_assert_that_never_runs_is_the_callers_mistake(box, tests, line):
    with pytest.raises(ValueError, match=rf"^tests have an assert in line {line} that never runs: .* they begin ."):
        count_tests(tests)
    with pytest.raises(ValueError, match="that never runs"):
        passed(box, RIGHT, tests)


def test_a_call_whose_result_is_kept_prepares_a_test_and_is_none(box):
    tests = (
        "def chain(n):\n    assert n > 0\n    return [*range(n)]\n"
        "def sorted_key(x):\n    assert x >= 0\n    return x\n"
        "xs = chain(3)\nassert f(len(xs)) == 4\nassert sorted([2, f(0)], key=sorted_key) == [1, 2]"
    )
    assert split(tests).sources == ("assert f(len(xs)) == 4", "assert sorted([2, f(0)], key=sorted_key) == [1, 2]")
    assert passed(box, RIGHT, tests) == [True, True]
    assert passed(box, WRONG, tests) == [False, False]


def test_an_assert_of_a_constant_is_no_test_in_a_function_either():
    assert count_tests("def fail():\n    assert False\nfail()\nassert f(1) == 2") == 1
    assert count_tests("class A:\n    def fail(self):\n        assert False\nassert f(1) == 2") == 1


def test_an_error_that_is_to_come_is_a_test(box):
    tests = "try:\n    f(-1)\n    assert False\nexcept ValueError:\n    pass\nassert f(1) == 2"
    assert count_tests(tests) == 2
    assert passed(box, "def f(n):\n    if n < 0:\n        raise ValueError\n    return n + 1", tests) == [True, True]
    assert passed(box, RIGHT, tests) == [False, True]


@pytest.mark.parametrize(
    ("tests", "count"),
    [
        ("try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    assert False", 1),
        ("try:\n    f(-1)\n    assert False\nexcept:\n    pass", 0),  # which catches the assert
        ("try:\n    f(-1)\n    assert False\nexcept (KeyError, Exception):\n    pass", 0),
        ("try:\n    f(-1)\nexcept Exception:\n    pass\nelse:\n    assert False", 1),
        ("def t(x):\n    try:\n        f(x)\n        assert False\n    except ValueError:\n        pass\nt(-1)", 1),
    ],
)  # fmt: skip
def test_an_error_that_is_to_come_can_fail(box, tests, count):
    assert count_tests(tests) == count
    assert passed(box, RIGHT, tests) == [False] * count


def test_the_solution_is_what_check_is_given_by_whatever_name(box):
    tests = "def check(fn):\n    assert fn(1) == 2\n    assert [fn(n) for n in (2, 3)] == [3, 4]\ncheck(f)"
    assert passed(box, RIGHT, tests) == [True, True]
    assert passed(box, WRONG + "\ndef fn(n):\n    return n + 1", tests) == [False, False]


def test_check_may_be_called_behind_if_name(box):
    tests = "def check(candidate):\n    assert candidate(1) == 2\nif __name__ == '__main__':\n    check(f)"
    assert passed(box, RIGHT, tests) == [True]
    assert passed(box, WRONG, tests) == [False]
