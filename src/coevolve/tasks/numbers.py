"""Base of the tasks ``gsm8k``, ``svamp`` and ``mawps``: questions that a number answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

from coevolve import noise
from coevolve.names import did_you_mean
from coevolve.rewards.equivalence import MathVerify
from coevolve.rewards.numbers import is_right, last_number, number
from coevolve.tasks import data
from coevolve.tasks.heard import going_on, sorted_out
from coevolve.types import Case, Instruction, Problem, Prompt, Role, Turn

Judge = Callable[[str, Fraction], bool]
"""(an answer, the right number) -> whether the answer is right."""

JUDGES: dict[str, Callable[[], Judge]] = {"last-number": lambda: is_right, "math-verify": MathVerify}

EXAMPLE = """\
Question: A baker fills 4 bags with 6 rolls each and has 5 rolls left. He sells a third of the bagged rolls. \
How many rolls does he still have?
Answer: The bags hold 4 * 6 = 24 rolls. He sells 24 / 3 = 8 of them, so 24 - 8 = 16 are left in the bags. \
With the 5 others he still has 16 + 5 = 21 rolls. The answer is 21.

"""
"""The one-shot example before every question. It is ours: the paper does not print its own."""

QUESTION = "Question: {question}\n"
REFERENCE = "Reference: {text}\n"
ANSWER = "Answer:"
AGAIN = "Check this answer, then answer again.\n"


class Numbers:
    """Base class: questions with a right number; every turn is paid 1 if its own answer is right, else 0.

    train, test: problems whose data hold ``question`` and ``gold``, the right number as a Fraction. judge:
    "last-number", the rule of CORY's GSM8K runs (``rewards.numbers``), or "math-verify", which reads formulas too
    (``rewards.equivalence``). "last-number" judges the whole text: what a model adds behind its answer, such as a
    question that it made up, counts, and that is how the paper's PPO runs collapse. "math-verify" prefers a
    ``\\boxed{}``, a formula or what follows "the final answer is", wherever it stands, to the end of the text.

    Any role names will do: a role that has heard no other is given the example and the question, one that has heard
    others also their last answers, as references. Raises ValueError for an unknown judge.
    """

    asks = ("question",)
    example = EXAMPLE
    """The text before the question of a first turn."""

    def __init__(self, *, train: Sequence[Problem], test: Sequence[Problem], judge: str) -> None:
        if judge not in JUDGES:
            raise ValueError(f"task.judge is {judge!r}{did_you_mean(judge, JUDGES)}; want one of {', '.join(JUDGES)}")
        self.train, self.test, self._judge = train, test, judge

    @cached_property
    def judge(self) -> Judge:
        """The judge, made on first use because it may need a package. Raises ValueError if that is missing."""
        return JUDGES[self._judge]()

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """Return CORY's prompt (arXiv 2410.06101, section 4); or the role's own last turn and what is new.

        heard: turns of other roles, the last of each of which is a reference, and texts, which are references if the
        role has not spoken, else notes behind its own turn. With nothing new, the role is asked to answer again.
        """
        return asked(p, role, heard, self.example)

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """Return 1.0 or 0.0 for each turn, by its own answer."""
        return [self._right(case) for case in cases]

    def parts(self, cases: Sequence[Case]) -> list[dict[str, float]]:
        """Return for each case ``solved``: whether the last turn, which is the team's answer, is right (0 or 1);
        ``numbers``: the share of answers with a number in them; for several turns also ``solved_any``, whether one of
        them is right, and ``agree``, whether all end in the same number.
        """
        return [self._parts(case) for case in cases]

    def _right(self, case: Case) -> list[float]:
        return [float(self.judge(turn.text, case.problem.data["gold"])) for turn in case.turns]

    def _parts(self, case: Case) -> dict[str, float]:
        right = self._right(case)
        said = [last_number(turn.text) for turn in case.turns]
        found = {"solved": right[-1], "numbers": sum(value is not None for value in said) / len(said)}
        if len(right) > 1:
            found |= {"solved_any": max(right), "agree": float(None not in said and len(set(said)) == 1)}
        return found


def asked(p: Problem, role: Role, heard: Sequence[Turn | str], example: str = "") -> Prompt:
    """Return the prompt of ``Numbers.prompt``. example: the text before the question of a first turn."""
    own, others, told = sorted_out(role, heard)
    given = [*(turn.text for turn in others.values()), *(told if own is None else ())]
    references = "".join(REFERENCE.format(text=text.strip()) for text in given)
    if own is None:
        return Instruction(example + QUESTION.format(**p.data) + references + ANSWER)
    notes = "".join(f"{text}\n" for text in told if text)
    return going_on(own, "\n\n" + (references + notes or AGAIN) + ANSWER)


def value(row: data.Row, *columns: str) -> Fraction:
    """Return the number in the first of these columns that the row has. Raises ValueError if there is none."""
    for column in columns:
        if column in row:
            return number(str(row[column]))
    raise ValueError(f"no column {' or '.join(map(repr, columns))}; it has {', '.join(row) or 'none'}")


def split(problems: Sequence[Problem], share: float) -> tuple[list[Problem], list[Problem]]:
    """Return (train, test) of a set that has no split of its own: about this share of the stories is held out.

    A hash of the letters of a problem's ``story``, or else of its question, decides, so neither order nor source of the
    rows matters, and problems that differ in numbers only are on one side. Of questions that repeat, spaces and
    punctuation aside, the first is kept. A held-out problem with numbers is dropped if a training problem has the
    same numbers, the same answer and at least three fifths of all words of the two: it is the same in another edition.
    """
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(re.sub(r"[\W_]+", "", problem.data["question"].lower()), problem)
    parts: tuple[list[Problem], list[Problem]] = ([], [])
    for problem in first.values():
        story = re.sub(r"[\W\d_]+", "", (problem.data.get("story") or problem.data["question"]).lower())
        parts[noise.integer(1, 1000, "held out", story) <= 1000 * share].append(problem)
    train, held_out = parts
    told: dict[tuple[object, ...], list[set[str]]] = {}
    for problem in train:
        numbers, words = _told(problem)
        told.setdefault(numbers, []).append(words)
    return train, [problem for problem in held_out if not _is_among(*_told(problem), told)]


def _told(p: Problem) -> tuple[tuple[object, ...], set[str]]:
    """Return a problem's numbers, sorted, with its answer, and its words."""
    text = p.data["question"].lower()
    return (*sorted(re.findall(r"\d+(?:\.\d+)?", text)), p.data.get("gold")), set(re.findall(r"[^\W\d_]+", text))


def _is_among(
    numbers: tuple[object, ...], words: set[str], told: Mapping[tuple[object, ...], Sequence[set[str]]]
) -> bool:
    """Return whether one of the problems ``told`` has these numbers, besides the answer, and most of these words."""
    return len(numbers) > 1 and any(
        5 * len(words & others) >= 3 * len(words | others) for others in told.get(numbers, ())
    )
