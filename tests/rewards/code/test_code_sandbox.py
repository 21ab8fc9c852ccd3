"""Grades with the real sandbox."""

import os

import pytest
from boxes import AUX

from coevolve.rewards.code import Job, grade
from coevolve.rewards.sandbox import Sandbox
from coevolve.tasks import data, humaneval, mbpp

real = pytest.mark.skipif(not os.environ.get(data.FOLDER), reason="COEVOLVE_DATA is not set: no reference solutions")


@pytest.fixture(scope="module")
def box():
    with Sandbox() as box:
        yield box


@pytest.fixture
def patient():
    """For what is right whenever it is done, on a machine that has other things to do."""
    with Sandbox(timeout=60.0) as box:
        yield box


def test_what_is_run_decides(box):
    tests = "assert candidate(1) == 4\nassert candidate(2) == 6\nassert candidate([]) == 0"
    mains = [
        "def f(x):\n    return 0 if x == [] else aux(x) * 2",  # 4.0
        "def f(x):\n    return aux(x) * 2",  # [] + 1 is an error: two of three
        "def f(x):\n    return aux(x) * 3",  # 6, 9, error: none, so no cooperation
        "import os\nos._exit(0)\ndef f(x):\n    return aux(x)",
        "def aux(x):\n    return 0\nprint(f(1) / 0)\ndef f(x):\n    return 0 if x == [] else aux(x) * 2",  # 4.0
    ]
    grades = grade([Job("f", tests)] * 5, [{"aux": AUX, "main": main} for main in mains], box)
    assert [found.total for found in grades] == pytest.approx([4.0, 1.5 + 2 / 3 + 1.5, 1.5, 1.5, 4.0])
    assert [found.parts()["solved"] for found in grades] == [1.0, 0.0, 0.0, 0.0, 1.0]


def test_preludes_serve_the_answer_and_the_tests(box):
    job = Job(
        "f",
        "assert candidate(double(1)) == double(candidate(1))\nassert candidate(start) == 12",
        prelude="def double(x):\n    return 2 * x",
        setup="start = f(2)",
    )
    [found] = grade([job], [{"main": "def f(x):\n    return double(x) + x * 0 if x < 4 else 3 * x"}], box)
    assert [verdict.kind for verdict in found.verdicts] == ["passed", "passed"]


DOUBLE, LINE = "def aux(x):\n    return 2 * x", "def f(x):\n    return aux(x) + 1"
LINE_JOB = Job("f", "assert candidate(1) == 3\nassert candidate(5) == 11")


def test_a_usage_example_at_the_end_costs_nothing(box):
    mains = [
        f"{LINE}\n\nn = int(input())\nprint(f(n))",
        f"{LINE}\nresult = f(numbers)\nprint(result)",
        f"{LINE}\ndef main():\n    n=int(input())\n    print(f(n))\nmain()",
        f"{LINE}\ndef test_f():\n    assert f(1)==4\ntest_f()",
        f"from aux import aux\n{LINE}",
        f"from helper import aux\n{LINE}",
        f"import aux\n{LINE}",
        f"from functools import cache\n{LINE}\nf = cache(f)",
    ]
    grades = grade([LINE_JOB] * 8, [{"aux": DOUBLE, "main": main} for main in mains], box)
    assert [found.total for found in grades] == [4.0] * 8


def test_what_only_disturbs_the_tests_costs_nothing(box):
    fine = [
        "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        assert f(1) == 3\nunittest.main()",
        "from my_helpers import aux, other",
        "from my_module import f\nprint(f(2))",
        "from helpers import *",
    ]
    grades = grade([LINE_JOB] * 4, [{"aux": DOUBLE, "main": f"{LINE}\n{code}"} for code in fine], box)
    assert [found.total for found in grades] == [4.0] * 4
    table = "T = []\nfor i in range(9):\n    T.append(2 * i)\n    print(i)\ndef aux(x):\n    return T[x]"
    [found] = grade([LINE_JOB], [{"aux": table, "main": LINE}], box)
    assert found.total == 4.0


def test_another_name_of_a_function_is_that_function(box):
    """But another name of the helper is no use of it, though a helper that calls itself holds a call of aux."""
    recursive = "def aux(x):\n    return 1 if x == 0 else aux(x - 1) + 2"
    pairs = [
        (DOUBLE, "def solve(x):\n    return aux(x) + 1\nf = solve", 4.0),
        ("def twice(x):\n    return 2 * x\naux = twice", LINE, 4.0),
        (recursive, "def solve(x):\n    return aux(x)\nf = solve", 3.0),
        (recursive, "def aux(x):\n    return 0\nf = aux", 2.5),
        (recursive, "g = aux\ndef f(x):\n    return g(x)", 2.5),
        (recursive.replace("aux", "g") + "\naux = g", "def f(x):\n    return g(x)", 2.5),
        (DOUBLE, "def solve(x):\n    return aux(x) + 1\nf = solve(3)", 0.4),
    ]
    grades = grade([LINE_JOB] * 7, [{"aux": aux, "main": main} for aux, main, _ in pairs], box)
    assert [found.total for found in grades] == [total for _, _, total in pairs]


def test_main_is_not_paid_for_an_aux_of_its_own(box):
    own = [
        "if True:\n    def aux(x):\n        return 2*x",
        "aux, = (lambda x: 2*x),",
        "(aux := lambda x: 2*x)",
        "for aux in [lambda x: 2*x]: pass",
        "globals()['aux'] = lambda x: 2*x",
        "def g():\n    global aux; aux=lambda x: 2*x\ng()",
    ]
    helper = "def aux(x):\n    return 0"
    grades = grade([LINE_JOB] * 6, [{"aux": helper, "main": f"{code}\n{LINE}"} for code in own], box)
    assert [found.total for found in grades] == [1.5] * 6


@real
def test_reference_solutions_of_humaneval_are_paid_in_full(patient):
    rows = data.rows("humaneval", dataset="openai/openai_humaneval", split="test")
    jobs = [_job(problem) for problem in humaneval.problems(rows, "humaneval")]
    codes = [row["prompt"] + row["canonical_solution"] for row in rows]
    texts = [code if i % 2 else f"Like this:\n\n```python\n{code}\n```\nIt works." for i, code in enumerate(codes)]
    grades = grade(jobs, [{"main": text} for text in texts], patient)
    assert [found.total for found in grades] == pytest.approx([2.1] * 164)


@real
@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("mbpp_sanitized", 427), ("mbpp", 974)])
def test_reference_solutions_of_mbpp_are_paid_in_full(patient, name, count):
    rows = data.rows(name, dataset="google-research-datasets/mbpp", split="test")
    jobs = [_job(problem) for problem in mbpp.problems(rows, name)]
    grades = grade(jobs, [{"main": row["code"]} for row in rows], patient)
    assert [found.total for found in grades] == pytest.approx([2.1] * count)


def _job(problem):
    return Job(**{name: problem.data.get(name, "") for name in ("entry", "tests", "prelude", "setup")})
