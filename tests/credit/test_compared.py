"""Credit by comparisons: by hand, and what contradicts itself."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from lesson_cases import no_reward, paid, spoke

from coevolve.credit import CREDITS, compared
from coevolve.recipe.components import component


def said(*texts, problem="p"):
    return [
        paid(
            (0.0, 0.0), spoke("x", "ann", a, problem=problem, member=m), spoke("y", "bob", b, problem=problem, member=m)
        )
        for m, (a, b) in enumerate(texts)
    ]


def longer(problem, first, second):
    return len("".join(first.values())) - len("".join(second.values()))


def test_wins_less_losses_within_a_problem():
    episodes = [*said(("a", "b"), ("aaa", "b"), ("a", "a")), *said(("long", "long"), problem="q")]
    assert compared(by=longer)(episodes, no_reward) == [[-1, -1], [2, 2], [-1, -1], [0, 0]]


@pytest.mark.parametrize(
    "number", [np.int64, np.float32, np.asarray, torch.tensor, lambda x: torch.tensor([float(x)]), Fraction]
)
def test_any_number_says_which_is_better(number):
    """What a model or an array has computed is one, too."""
    episodes = said(("a", "b"), ("aaa", "b"), ("a", "a"))
    by_number = compared(by=lambda problem, first, second: number(longer(problem, first, second)))
    assert by_number(episodes, no_reward) == [[-1, -1], [2, 2], [-1, -1]]


def test_without_bounds_better_is_better():
    def surely(problem, first, second):
        return math.copysign(math.inf, longer(problem, first, second))

    assert compared(by=surely)(said(("a", "b"), ("aaa", "b")), no_reward) == [[-1, -1], [1, 1]]


def test_one_member_has_nothing_to_be_compared_with():
    alone = [*said(("a", "b")), *said(("a", "b"), problem="q")]
    with pytest.raises(ValueError, match="credit compared: no problem has two joint responses to compare; set mem"):
        compared(by=longer)(alone, no_reward)


def test_what_is_compared_is_the_joint_response():
    """And not what was said beside it: of the longer answer the asking was shorter."""
    episodes = said(("a", "b"), ("aaa", "b"))
    for episode, asking in zip(episodes, ("asked long", "a"), strict=True):
        episode.turns.append(spoke("x", "ann", asking, member=episode.member))
    assert compared(by=longer)(episodes, no_reward) == [[-1] * 3, [1] * 3]


def test_a_comparison_of_numpys_is_a_number():
    def more(problem, first, second):
        return np.float64(len(first["x"])) > len(second["x"])  # and no sign: np.bool

    with pytest.raises(ValueError, match=r"it says \+0 and, the other way round, \+1; want the opposite sign"):
        compared(by=more)(said(("a", "b"), ("aaa", "b")), no_reward)
    assert compared(by=more)(said(("a", "b"), ("a", "c")), no_reward) == [[0, 0], [0, 0]]


def test_it_is_asked_about_every_pair_in_both_orders_with_the_columns():
    calls = []

    def note(problem, first, second):
        calls.append((dict(problem), first["x"], second["y"]))
        return 0

    compared(by=note)(said(("1", "2"), ("3", "4"), ("5", "6")), no_reward)
    assert len(calls) == 6
    assert calls[:2] == [({}, "1", "4"), ({}, "3", "2")]


def test_of_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def shorter(problem, first, second):\n    return len(second['x']) - len(first['x'])"
    )
    rule = component({"name": "compared", "by": f"{tmp_path / 'mine.py'}:shorter"}, CREDITS, "algorithm.credit")
    assert rule(said(("a", "b"), ("aaa", "b")), no_reward) == [[1, 1], [-1, -1]]


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (
            lambda p, a, b: 1,
            r"contradicts itself on problem 'p': of {'x': 'a', 'y': 'b'} and .* says \+1 and, the other",
        ),
        (lambda p, a, b: int(a["x"] == "a"), r"it says \+1 and, the other way round, \+0; want the opposite sign"),
        (lambda p, a, b: "first", "the comparator returned 'first'; want a number"),
        (lambda p, a, b: float("nan"), "the comparator returned nan; want a number"),
        (lambda p, a, b: torch.tensor(math.nan), r"the comparator returned tensor\(nan\); want a number"),
        (lambda p, a, b: np.zeros(2), r"the comparator returned array\(\[0., 0.\]\); want a number"),
        (lambda p, a, b: torch.zeros(2), r"the comparator returned tensor\(\[0., 0.\]\); want a number"),
    ],
)
def test_comparators_that_nobody_can_learn_from(by, message):
    with pytest.raises(ValueError, match=message) as error:
        compared(by=by)(said(("a", "b"), ("aaa", "b")), no_reward)
    assert "\n" not in str(error.value)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"algorithm\.credit: by: .*found 3"):
        compared(by=3)
    with pytest.raises(ValueError, match=r"algorithm\.credit\.by: no file .*none\.py"):
        compared(by=f"{tmp_path}/none.py:better")
    (tmp_path / "seven.py").write_text("seven = 7")
    with pytest.raises(ValueError, match=r"by is .*want a function"):
        compared(by=f"{tmp_path}/seven.py:seven")
    episodes = said(("a", "b"), ("c", "d"))
    episodes[1].joints *= 2
    with pytest.raises(ValueError, match="credit compared: problem 'p' has 2 joint responses"):
        compared(by=longer)(episodes, no_reward)
