"""Credits that ask what joint responses nobody gave would have been paid."""

from collections import defaultdict

import pytest

from coevolve.credit import counterfactual, crossed, difference, shapley, team_return
from coevolve.tasks.games import Game
from coevolve.types import Case, Episode, Joint, Problem, Turn

P = Problem("p")
PAYS = {
    "a0 b0": 1, "a0 b1": 3, "a1 b0": 5, "a1 b1": 11,
    "- b0": 0.5, "- b1": 2, "a0 -": 0.25, "a1 -": 4, "- -": 0,
}  # fmt: skip
ALL = [crossed, counterfactual, difference, shapley]


class Paid:
    """A task's reward by the texts: the team's mean is what the table says. It counts what it is asked for."""

    def __init__(self, pays=PAYS):
        self.pays, self.asked = pays, []

    def __call__(self, cases):
        said = [" ".join(turn.text for turn in case.turns) for case in cases]
        self.asked += said
        spread = range(-len(cases[0].turns) + 1, len(cases[0].turns), 2) if cases else ()
        return [[self.pays[words] + off for off in spread] for words in said]


def episode(paid, member, *texts, problem=P):
    roles = "abcdefghij"
    turns = [Turn(roles[n], roles[n], problem, member, 0, [1], [2], [0.0], text, True) for n, text in enumerate(texts)]
    [rewards] = paid([Case(problem, tuple(turns))])
    paid.asked.clear()
    return Episode(problem, member, turns, [Joint(tuple(turns), tuple(rewards))])


def two(paid):
    return [episode(paid, 0, "a0", "b0"), episode(paid, 1, "a1", "b1")]


LITERAL = [
    # a0 beside b0 and b1: (1 + 3) / 2; b0 beside a0 and a1: (1 + 5) / 2; a1: (5 + 11) / 2; b1: (3 + 11) / 2
    (crossed(), [[2, 3], [8, 7]], 2),
    # a0 for a1 beside b0: 1 - 5; b0 for b1 beside a0: 1 - 3; 11 - 3; 11 - 5
    (counterfactual(), [[-4, -2], [8, 6]], 4),
    # without a: 1 - 0.5, without b: 1 - 0.25; 11 - 2, 11 - 4
    (difference(default="-"), [[0.5, 0.75], [9, 7]], 4),
    # a joins nobody or b: (0.25 - 0 + 1 - 0.5) / 2; b: (0.5 - 0 + 1 - 0.25) / 2; (4 + 11 - 2) / 2; (2 + 11 - 4) / 2
    (shapley(default="-"), [[0.375, 0.625], [6.5, 4.5]], 6),
]


def test_a_problem_that_a_step_has_twice_is_crossed_each_time_for_itself():
    """As where an epoch ends in a step: its members are numbered on. Literals of two members as above, and half."""
    paid = Paid(PAYS | {words.replace(*new): pay / 2 for words, pay in PAYS.items() for new in (("a", "c"),)})
    other = Problem("other")
    again = [episode(paid, 2 + i, f"c{i}", f"b{i}") for i in range(2)]
    whole = [*two(paid), *(episode(paid, i, f"a{i}", f"b{i}", problem=other) for i in range(2)), *again]
    assert crossed()(whole, paid) == [[2, 3], [8, 7], [2, 3], [8, 7], [1, 1.5], [4, 3.5]]
    alike = [*whole[:4], *again, *whole[2:4]]  # every problem twice
    assert crossed()(alike, paid) == [[2, 3], [8, 7], [2, 3], [8, 7], [1, 1.5], [4, 3.5], [2, 3], [8, 7]]
    uneven = [*two(paid), *again[:1]]
    assert crossed()([*uneven, *whole[2:4]], paid)[:3] == crossed()(uneven, paid)  # no copies, but three members


@pytest.mark.parametrize(
    ("credit", "want", "calls"), LITERAL, ids=["crossed", "counterfactual", "difference", "shapley"]
)
def test_literals(credit, want, calls):
    paid = Paid()
    assert credit(two(paid), paid) == want
    assert len(paid.asked) == calls


def test_three_agents_by_shifts():
    # what x, y and z say is paid 100 x + 10 y + z. Beside each other: 000, 111, 222, and one step on: 012, 120, 201
    paid = Paid({f"{x} {y} {z}": 100 * x + 10 * y + z for x in range(3) for y in range(3) for z in range(3)})
    episodes = [episode(paid, i, *[str(i)] * 3) for i in range(3)]
    found = crossed(shifts=2)(episodes, paid)
    assert found == [[(0 + 12) / 2, (0 + 201) / 2, (0 + 120) / 2], [115.5, 61.5, 156.0], [211.5, 171.0, 117.0]]
    assert paid.asked == ["0 1 2", "1 2 0", "2 0 1"]
    whole = crossed()(episodes, paid)  # the partners' mean of 0 to 22 is 11, of 0 to 202 is 101, of 0 to 220 is 110
    assert whole == [[100 * i + 11, 10 * i + 101, i + 110] for i in range(3)]
    assert len(paid.asked) == 3 + 27 - 3


def test_what_they_reduce_to():
    paid = Paid(PAYS | {"a0": 1, "-": 0.25})
    aligned = team_return()(two(paid), paid)
    assert crossed(shifts=1)(two(paid), paid) == aligned
    assert crossed()(two(paid)[:1], paid) == aligned[:1]  # one member
    nothing = Paid({**PAYS, "- b0": 0, "- b1": 0, "a0 -": 0, "a1 -": 0})
    assert difference(default="-")(two(nothing), nothing) == aligned
    alone = [episode(paid, 0, "a0")]
    assert shapley(default="-")(alone, paid) == difference(default="-")(alone, paid) == [[0.75]]
    # agents that do not meet: pay x + y. A response's credit has nothing of its partner's
    apart = Paid({f"{x} {y}": px + py for x, px in (("a0", 1), ("a1", 4)) for y, py in (("b0", 0), ("b1", 10))})
    assert counterfactual()(two(apart), apart) == [[-3, -10], [3, 10]]


def test_shares_of_three_add_up():
    names = ("-", "x")
    paid = Paid(
        {f"{a} {b} {c}": len({a, b, c}) * (a == "x") + 3 * (b == "x" == c) for a in names for b in names for c in names}
    )
    [shares] = shapley(default="-")([episode(paid, 0, "x", "x", "x")], paid)
    assert sum(shares) == pytest.approx(paid.pays["x x x"] - paid.pays["- - -"])
    assert shares[1] == pytest.approx(shares[2]), "b and c do the same"


def test_a_team_of_eight_is_not_too_large():
    paid = Paid(defaultdict(float, {" ".join("x" * 8): 2.0}))
    assert shapley(default="-")([episode(paid, 0, *"x" * 8)], paid) == [[pytest.approx(0.25)] * 8]  # 2 / 8


def test_nobody_sampled_a_default():
    asked = []

    def reward(cases):
        asked.extend(cases)
        return [[0.0, 0.0]] * len(cases)

    difference(default="-")(two(Paid())[:1], reward)
    assert [[list(turn.action_ids) for turn in case.turns] for case in asked] == [[[], [2]], [[2], []]]
    assert [[list(turn.logps) for turn in case.turns] for case in asked] == [[[], [0.0]], [[0.0], []]]


def test_problems_are_apart():
    other = Problem("q")
    paid = Paid(PAYS | {"c0 d0": 7, "c1 d1": 9, "c0 d1": 1, "c1 d0": 3})
    mixed = [
        two(paid)[0],
        episode(paid, 0, "c0", "d0", problem=other),
        two(paid)[1],
        episode(paid, 1, "c1", "d1", problem=other),
    ]
    assert crossed()(mixed, paid) == [[2, 3], [4, 5], [8, 7], [6, 5]]


def test_of_three_members_two_stand_in_for_one():
    """What a and b say is paid 2^(3 a + b); and of another problem beside it, all the same thing."""
    other = Problem("q")
    texts = [f"{a} {b}" for a in range(3) for b in range(3)]
    paid = Paid({text: 2**n for n, text in enumerate(texts)} | {f"c{n} c{m}": 7 for n in range(2) for m in range(2)})
    episodes = [episode(paid, i, str(i), str(i)) for i in range(3)]
    episodes[1:1] = [episode(paid, i, f"c{i}", f"c{i}", problem=other) for i in range(2)]
    # 1 - (8 + 64) / 2 and 1 - (2 + 4) / 2; 16 - (2 + 128) / 2 and 16 - (8 + 32) / 2; 256 - 36 / 2 and 256 - 192 / 2
    assert counterfactual()(episodes, paid) == [[-35, -2], [0, 0], [0, 0], [-49, -4], [238, 160]]


@pytest.mark.parametrize("credit", ALL)
def test_what_is_asked_is_of_the_problem_of_its_turns(credit):
    episodes = [episode(Paid(), m, f"a{m}", f"b{m}", problem=p) for p in (Problem("p"), Problem("q")) for m in range(2)]
    asked = []

    def reward(cases):
        asked.extend(cases)
        return [[0.0, 0.0]] * len(cases)

    credit()(episodes, reward)
    assert {case.problem.id for case in asked} == {"p", "q"}
    assert all(turn.problem is case.problem for case in asked for turn in case.turns)


@pytest.mark.parametrize("credit", ALL)
def test_a_play_it_is_not_for(credit):
    paid = Paid()
    [first, second] = two(paid)
    second.turns[1].heard = (second.turns[0],)
    with pytest.raises(ValueError, match=f"credit {credit.__name__}: problem 'p': role 'b' may have heard another one"):
        credit()([first, second], paid)
    # As text, after the other's turn, as a referee passes a move on.
    second.turns[1].heard, second.turns[1].asked = ("a1",), 1
    with pytest.raises(ValueError, match="role 'b' may have heard another one"):
        credit()([first, second], paid)
    second.turns[1].asked = 0  # what the play tells everybody
    if credit is crossed:
        credit()([first, second], paid)
    first.joints.append(first.joints[0])
    with pytest.raises(ValueError, match=f"credit {credit.__name__}: problem 'p' has 2 joint responses of 2 turns"):
        credit()([first], paid)


@pytest.mark.parametrize(("credit", "default"), [(difference, ""), (shapley, ""), (shapley, "x")])
def test_a_default_that_the_task_cannot_score(credit, default):
    episodes = two(Paid())

    def reward(cases):
        for case in cases:
            Game(game="harmony").reward([case])

    named = credit.__name__
    with pytest.raises(ValueError) as error:
        credit(**({"default": default} if default else {}))(episodes, reward)
    assert str(error.value) == (
        f"credit {named} asks what its default {default!r} would be paid in place of a response, and credit: {{name: "
        f"{named}, default: ...}} sets another: role 'a' said {default!r}, no move; use model coevolve-coin and "
        "max_new_tokens: 1"
    )


def test_tables_and_teams_that_are_too_large():
    paid = Paid(dict.fromkeys([" ".join("x" * 9), *(f"{i} {i} {i}" for i in range(17))], 0.0))
    team = [episode(paid, 0, *"x" * 9)]
    with pytest.raises(ValueError, match="credit shapley: a team of 9; want at most 8, or credit: difference"):
        shapley()(team, paid)
    many = [episode(paid, i, *[str(i)] * 3) for i in range(17)]
    with pytest.raises(
        ValueError, match=r"17 members of 3 agents are 4,913 joint .* want at most 4,096: set shifts, at most 17"
    ):
        crossed()(many, paid)
    # 64 members of 2 are 4,096: what i says beside all of 0 to 63 is paid i - 31.5 in the mean
    paid = Paid({f"{i} {j}": i - j for i in range(64) for j in range(64)})
    found = crossed()([episode(paid, i, str(i), str(i)) for i in range(64)], paid)
    assert found == [[i - 31.5, 31.5 - i] for i in range(64)]
    paid = Paid(dict.fromkeys([f"{i} {i}" for i in range(65)], 0.0))
    with pytest.raises(ValueError, match=r"65 members of 2 agents are 4,160 joint .* want at most 4,096: set shifts"):
        crossed(shifts=64)([episode(paid, i, str(i), str(i)) for i in range(65)], paid)
    with pytest.raises(ValueError, match="credit crossed: 3 shifts of 2 members; want at most 2"):
        crossed(shifts=3)(two(Paid()), Paid())
    with pytest.raises(
        ValueError, match="credit counterfactual: problem 'p' has one member; want members of at least 2"
    ):
        counterfactual()(two(Paid())[:1], Paid())
    with pytest.raises(ValueError, match=r"algorithm\.credit: shifts is 0; want at least 1"):
        crossed(shifts=0)
