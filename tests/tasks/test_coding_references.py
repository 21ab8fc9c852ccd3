"""Reference solutions, run in our own sandbox: the judge takes nothing away from right programs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from coevolve.rewards.sandbox import Program, Sandbox
from coevolve.tasks import coophumaneval, data, humaneval
from coevolve.tasks.coding import Coding
from coevolve.types import Case, Problem, Turn

pytestmark = pytest.mark.skipif(not os.environ.get(data.FOLDER), reason="COEVOLVE_DATA is not set: no references")


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    found = Sandbox(timeout=60.0)
    yield found
    found.close()


def program(problem: Problem, code: str) -> Program:
    """The problem's tests on this code."""
    columns = ("tests", "entry", "prelude", "setup")
    return Program(code=code, **{name: problem.data[name] for name in columns if name in problem.data})


def failing(problems: Sequence[Problem], codes: Sequence[str], box: Sandbox) -> dict[str, list[str]]:
    """The problems of which not all tests pass -> how their tests ended."""
    programs = [program(problem, code) for problem, code in zip(problems, codes, strict=True)]
    found = {p.id: [one.kind for one in verdicts] for p, verdicts in zip(problems, box.run(programs), strict=True)}
    assert all(found.values())  # each has tests
    return {id: kinds for id, kinds in found.items() if set(kinds) != {"passed"}}


def humaneval_problems() -> list[Problem]:
    return humaneval.problems(data.read("humaneval"), "humaneval")


def solution(problem: Problem) -> str:
    return str(problem.data["prompt"] + problem.data["canonical_solution"])


def test_humaneval(box: Sandbox) -> None:
    problems = humaneval_problems()
    assert len(problems) == 164
    assert failing(problems, [solution(problem) for problem in problems], box) == {}


def test_coophumaneval_against_the_solutions_that_humaneval_has_for_the_same_functions(box: Sandbox) -> None:
    known = {problem.data["entry"]: problem for problem in humaneval_problems()}
    rows = data.read("coop_humaneval")
    shared = [p for p in coophumaneval.problems(rows, "coophumaneval") if p.data["entry"] in known]
    assert len(shared) == 16
    wrong = failing(shared, [solution(known[p.data["entry"]]) for p in shared], box)
    assert tuple(wrong) == coophumaneval.CONTRADICTORY[:2]


OTHERS = {
    "odd_even_sum_numbers": "import itertools\n\n\ndef odd_even_sum_numbers(n):\n    odd = itertools.count(1, 2)\n"
    "    found = (x for x in odd if sum(map(int, str(x))) % 2 == 0)\n    return list(itertools.islice(found, n))",
    "prime_ascii_sum_words": "def prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))\n\n\n"
    "def prime_ascii_sum_words(words):\n    return [word for word in words if prime(sum(map(ord, word)))]",
    "can_form_polygon": "def can_form_polygon(angles, n):\n"
    "    return len(angles) == n and sum(angles) == 180 * (n - 2)",
}
"""What the prompts of three problems say, which HumanEval does not have."""


def test_what_the_prompts_of_three_more_say_fails_their_tests(box: Sandbox) -> None:
    rows = data.read("coop_humaneval")
    asked = [p for p in coophumaneval.problems(rows, "coophumaneval") if p.data["entry"] in OTHERS]
    wrong = failing(asked, [OTHERS[p.data["entry"]] for p in asked], box)
    assert tuple(wrong) == coophumaneval.CONTRADICTORY[2:]


def test_humaneval_as_answers_of_a_single_agent() -> None:
    """From the text of an answer to its reward: nothing that a right answer needs is lost on the way."""
    problems = humaneval_problems()
    task = Coding(train=problems, test=problems, voices={})
    cases = [
        Case(p, (Turn("coder", "llm", p, 0, 0, (), (), (), f"```python\n{solution(p)}```", True),)) for p in problems
    ]
    tests = {p.id: parts["tests"] for p, parts in zip(problems, task.parts(cases), strict=True)}
    assert {id: share for id, share in tests.items() if share < 1.0} == {}
    assert all(reward == [2.1] for reward in task.reward(cases))
