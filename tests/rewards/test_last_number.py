"""The last number of an answer: every form that models write, and none that stops a run."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coevolve.rewards.numbers import gold_of, is_right, last_number, number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The answer is 12", 12),
        ("12.", 12),  # a full stop is no decimal point
        ("She has 12. Then she buys 3.", 3),
        ("12.0", 12),
        ("$12.50", Fraction(25, 2)),
        ("0.1", Fraction(1, 10)),  # exactly; the float 0.1 is not
        (".5 of them", Fraction(1, 2)),
        ("wait...5", 5),
        ("1,000", 1000),
        ("109,200,000 people", 109200000),
        ("12345,678", 12345678),
        ("3,4", 4),
        ("1,0000", 0),  # "1", then "0000"
        ("1,0050", 50),
        ("1, 2, and 3", 3),
        ("40%", 40),
        ("#### 72", 72),
        ("\\boxed{72}", 72),
        ("6*7=42", 42),
        ("<<6*7=42>>42", 42),
        ("x = -5", -5),
        ("-\\$5", -5),  # Markdown
        ("_-5_", -5),
        ("x_1-5", 5),
        ("\\frac{-1}{2}", Fraction(-1, 2)),
        ("x = \\dfrac{\u22123}{4}", Fraction(-3, 4)),
        ("$\\displaystyle\\frac{-1}{2}$", Fraction(-1, 2)),
        ("3\\cdot\\frac{-7}{2}", Fraction(-7, 2)),
        ("-\\frac{.5}{2}", Fraction(-1, 4)),
        ("\\frac12", Fraction(1, 2)),
        ("2\\frac12", Fraction(5, 2)),
        ("\\frac{a}{2}", 2),
        ("--5", -5),
        ("-$5", -5),
        ("- 5", 5),  # the dash of a list
        ("So she has:\n\n- 18 eggs", 18),
        ("Answer - $42", 42),
        ("x = - 5", -5),
        ("x =- 5", -5),
        ("(- 5)", -5),
        ("-$ 5", -5),
        ("\u22125", -5),  # the sign of mathematics
        ("3-5", 5),
        ("It is: \u20133.", -3),  # an en dash
        ("\u20133", -3),
        ("It is \u20133.", 3),  # which may be a range's
        ("10 kg \u20133 kg", 3),
        ("5% \u20137%", 7),
        ("\\frac{1}{2},500", 500),
        ("\\frac{1}{2}.5", Fraction(1, 2)),
        ("x = \u2013 3", -3),
        ("3\u20135", 5),
        ("3 \u2013 5", 5),
        ("10%\u201312%", 12),
        ("10 a.m.\u20132 p.m.", 2),
        ("3 \u20135", 5),
        ("$10$\u2013$12$", 12),
        ("$\u20135$", -5),
        ("$10\u2013$12", 12),
        ("\\boxed{1{,}800}", 1800),
        ("1\\,800", 1800),
        ("2{,}109\\,200", 2109200),
        ("(1{,}80)", 80),
        ("\\boxed{\\frac{36}{2}}", 18),
        ("$-\\dfrac{3}{8}$", Fraction(-3, 8)),
        ("3\\tfrac{1}{2} cups", Fraction(7, 2)),
        ("3 \\frac{1}{2} cups", Fraction(7, 2)),
        ("2\\cdot\\frac{1{,}800}{3}", 600),
        ("\\frac{x}{2}", 2),  # no fraction of numbers
        ("(8)-5", 5),
        ("x_{1}-5", 5),
        ("apples-5", 5),
        ("3/4", Fraction(3, 4)),
        ("-1/2", Fraction(-1, 2)),
        ("1.5/2", Fraction(3, 4)),
        ("12/05/2020", 2020),
        ("3 1/2", Fraction(7, 2)),
        ("It is 3 1/2.", Fraction(7, 2)),
        ("-3 1/2", Fraction(-7, 2)),
        ("$1,000 3/4 each", Fraction(4003, 4)),
        ("10 11/12 hours", Fraction(131, 12)),
        ("3 5/2", Fraction(5, 2)),  # no fraction of a mixed number
        ("-3 5/2", Fraction(5, 2)),
        ("3 2/2", 1),
        ("3 0/2", 0),
        ("3 1/2.5", Fraction(2, 5)),
        ("3 1.5/2", Fraction(3, 4)),
        ("1/2 1/4", Fraction(1, 4)),
        ("1.5 1/2", Fraction(1, 2)),
        ("2,3 1/2", Fraction(1, 2)),
        ("x3 1/2", Fraction(1, 2)),
        ("1e3 1/2", Fraction(1, 2)),
        ("3. 1/2", Fraction(1, 2)),
        ("3\n1/2", Fraction(1, 2)),
        ("3  1/2", Fraction(1, 2)),
        ("3 and 1/2", Fraction(1, 2)),
        ("3 -1/2", Fraction(-1, 2)),
        ("3 1", 1),
        ("1.2.3", 3),
        ("1e5", 5),
        ("5th", 5),
        ("007", 7),
        ("-0", 0),
        ("Answer: 5\n\nQuestion: Ann has 7 cats.", 7),  # the rule reads the whole response
    ],
)
def test_last_number(text: str, value: int | Fraction) -> None:
    assert last_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "nan",
        "inf",
        "-",
        ".",
        ",",
        "/",
        "5/0",
        "3 5/0",
        "\\frac{5}{0}",
        "\u0665\u0666",
        "\uff11\uff12",
        "\u00b2",
        "\x00\ud800",
        "twelve",
    ],
)
def test_no_number(text: str) -> None:
    assert last_number(text) is None


@pytest.mark.parametrize(
    "unit",
    [
        "9",
        "-",
        "1{,}111{,}",
        "\\frac{1}{",
        "1,",
        "1,111,",
        "1.",
        "1/",
        "/",
        ".",
        ",",
        "- ",
        "1 ",
        "1 1/",
        "1 1/2 ",
        "((1",
        "$-",
    ],
)
def test_a_hundred_thousand_characters(unit: str) -> None:
    assert last_number(unit * (100_000 // len(unit)) + " so 7") == 7


def test_a_number_too_long_to_read_is_none() -> None:
    assert last_number("9" * 1000) == 10**1000 - 1
    assert last_number("9" * 1001) is None
    assert last_number("1/" + "9" * 100_000) is None
    assert last_number("3 1/" + "9" * 100_000) is None


def test_is_right() -> None:
    assert is_right("so it is $1,000.00.", Fraction(1000))
    assert not is_right("1000 or 1001", Fraction(1000))
    assert not is_right("no idea", Fraction(0))
    assert is_right("3 1/2 cups", Fraction(7, 2))
    assert not is_right("3 1/2 cups", Fraction(1, 2))
    # 2^53 + 1: as floats these two would be equal.
    assert not is_right("9007199254740993", Fraction(9007199254740992))


def test_gold_of() -> None:
    assert gold_of("7 #### is a sign\n5+5=<<5+5=10>>10\n#### 1,080") == 1080
    assert gold_of("#### -3") == -3
    assert gold_of("#### $4.50 ") == Fraction(9, 2)
    assert gold_of("#### 4 1/2") == Fraction(9, 2)


@pytest.mark.parametrize(
    ("solution", "why"),
    [
        ("It is 5.", r"no '####' in the worked solution 'It is 5\.'"),
        ("#### five", r"'five' is no number; want one such as 12, 1,000 or -0\.5"),
        ("#### ", "'' is no number"),
        ("#### 5 6", "'5 6' is no number"),
        ("#### 5/0", "'5/0' is no number"),
        ("#### 3 5/2", "'3 5/2' is no number"),
    ],
)
def test_no_gold(solution: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        gold_of(solution)


def test_number() -> None:
    assert number("51.0") == 51
    assert number(" 1,000 ") == number("$1{,}000") == 1000
    assert number("\u2013\\frac{3}{8}") == Fraction(-3, 8)
    assert [number(text) for text in ("- 5", "-5", "- $5", "\u2212 3 1/2")] == [-5, -5, -5, Fraction(-7, 2)]
    with pytest.raises(ValueError, match="'12 apples' is no number"):
        number("12 apples")
