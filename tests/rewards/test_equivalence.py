"""math-verify as the judge: what it finds equal, and that no answer stops or outlives it."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from coevolve.faults import ShortageError
from coevolve.rewards import equivalence
from coevolve.rewards.equivalence import MathVerify


@pytest.fixture(scope="module")
def judge() -> Iterator[MathVerify]:
    if importlib.util.find_spec("math_verify") is None:
        pytest.skip("needs the package math-verify (coevolve[math])")
    made = MathVerify()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("The answer is $12$.", Fraction(12), True),
        ("so 12.0", Fraction(12), True),
        ("\\boxed{\\frac{24}{2}}", Fraction(12), True),  # the last number is 2
        ("It costs $1,000.", Fraction(1000), True),
        ("x = -5", Fraction(-5), True),
        ("x = \N{MINUS SIGN}5", Fraction(-5), True),
        ("\\frac{2}{3}", Fraction(2, 3), True),
        ("12 or 13", Fraction(12), False),
        ("", Fraction(0), False),
        ("no idea", Fraction(0), False),
        ("\x00\ud800\r\n\u2028", Fraction(0), False),
    ],
)
def test_verdicts(judge: MathVerify, text: str, gold: Fraction, right: bool) -> None:
    assert judge(text, gold) is right


@pytest.mark.parametrize("unit", ["9", "{", "\\boxed{", "$", "1/", "\\frac{1}{", "((", "5 and "])
def test_a_hundred_thousand_characters(judge: MathVerify, unit: str) -> None:
    assert judge(unit * (100_000 // len(unit)), Fraction(12)) is False


def test_an_answer_that_takes_too_long_is_wrong_and_the_next_one_is_judged(judge: MathVerify) -> None:
    began = time.monotonic()
    assert judge("$9^{9^{9^{9}}}$", Fraction(12)) is False
    assert time.monotonic() - began < 60  # its limit is 3 seconds of computing; the rest is for a busy machine
    assert judge("12", Fraction(12)) is True


def test_a_guest_that_died_between_two_answers(judge: MathVerify) -> None:
    """The next answer is judged by another one."""
    assert judge("12", Fraction(12))
    assert judge._guest is not None
    judge._guest.kill()
    judge._guest.wait()
    assert judge("12", Fraction(12))


def test_in_another_thread(judge: MathVerify) -> None:
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(judge("12", Fraction(12)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"judge math-verify needs the package math-verify; pip install 'coevolve\[m"):
        MathVerify()


def test_a_guest_that_does_not_start(judge: MathVerify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    monkeypatch.setattr(equivalence, "_GUEST", tmp_path / "broken.py")
    with pytest.raises(ValueError, match="math-verify does not start"):
        MathVerify()("12", Fraction(12))


def test_a_guest_that_is_killed_as_it_starts_is_no_broken_package(
    judge: MathVerify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setattr(equivalence, "_GUEST", tmp_path / "killed.py")
    with pytest.raises(ShortageError, match="was killed as it started, perhaps for want of memory"):
        MathVerify()("12", Fraction(12))


def test_the_training_process_does_not_import_it(judge: MathVerify) -> None:
    judge("12", Fraction(12))
    assert "math_verify" not in sys.modules
