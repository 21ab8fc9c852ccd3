"""Task ``writing-mini``: the pair reward of ``tldr`` on generated opinions. Everything it needs is in the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from coevolve.rewards.several import RewardSpec
from coevolve.rewards.writing import TLDR
from coevolve.rewards.writing_words import read_words
from coevolve.settings import NotNegative
from coevolve.tasks.data import Later
from coevolve.tasks.heard import Voice
from coevolve.tasks.scoring import Scoring
from coevolve.tasks.worlds.opinions import openings, opinion, random_grade
from coevolve.tasks.worlds.split import Split
from coevolve.tasks.writing import WRITER, Writing
from coevolve.types import Problem

MINI = replace(TLDR, words=(3, 24))

_SENTENCES = 2
_FIRST = '{{told}}I can make this sentence "{{text}}" {how}: {{opening}}'
_AGAIN = "\n\n{{told}}I can make it {how}: {{opening}}"


class WritingMini(Writing):
    """MAGRPO's TLDR reward (arXiv 2508.04652), small enough for ``coevolve-tiny`` on a laptop.

    A problem's text is two generated opinions on one subject, which was not in the pre-training text of
    ``coevolve-tiny``; a role continues a third one, which begins with the same words ("The soup at the cafe was").
    roles: two or more, each of which should write more, and with more different words, than the one before; with two,
    ``writer`` may write both. bands: thresholds to change, see ``rewards.writing.Bands``. stop_words, transition_words:
    files with lists that replace the packaged ones, see ``rewards.writing_words``. scoring: "paper" also counts
    padding, see ``rewards.writing_plain``. rivalry: how much each writer is paid for its share of the team's words
    beyond an equal one, which the others lose, so that interests conflict and the team's mean stays. reward, feedback:
    your own functions instead, see ``rewards.function``.

    Differences from ``Tldr``:
    1. Texts may have 3 to 24 words, rather than 8 to 256; all other thresholds are the same.
    2. Prompts have the form of those that ``coevolve-tiny`` was pre-trained on, with another last word: "I can make
       this sentence ... longer:".
    3. The reward of three or more writers is the mean of the pair reward over neighbours. The paper has two.

    Raises ValueError for fewer than two roles, one given twice or named ``writer``, an unknown band, a list of words
    that cannot be read, and rivalry beside a reward of your own.
    """

    def __init__(
        self,
        *,
        roles: Sequence[str] = ("short", "detailed"),
        bands: dict[str, Any] | None = None,
        stop_words: str | None = None,
        transition_words: str | None = None,
        scoring: Scoring = "ours",
        rivalry: NotNegative = 0.0,
        reward: RewardSpec | None = None,
        feedback: str | Callable[..., Any] | None = None,
    ) -> None:
        if len(roles) < 2 or len(set(roles)) < len(roles) or WRITER in roles:
            raise ValueError(f"task.roles are {list(roles)}; want two or more different names, none of them {WRITER}")
        if rivalry and reward is not None:
            raise ValueError("task.rivalry is of the task's own reward, and task.reward is another; remove one")
        super().__init__(
            train=Later(lambda: _problems("train")),
            test=Later(lambda: _problems("test")),
            voices=_voices(roles),
            bands=MINI.changed(bands or {}),
            words=read_words(stop_words, transition_words),
            scoring=scoring,
            reward=reward,
            feedback=feedback,
            rivalry=rivalry,
        )


def _voices(roles: Sequence[str]) -> dict[str, Voice]:
    found = {role: _voice(f"The {role} one", _how(rank)) for rank, role in enumerate(roles)}
    if len(roles) == 2:
        found[WRITER] = _voice("Both", "shorter, then --- and longer")
    return found


def _voice(name: str, how: str) -> Voice:
    return Voice(name=name, first=_FIRST.format(how=how), again=_AGAIN.format(how=how))


def _how(rank: int) -> str:
    """Return how the writer of this rank should write: the first shorter, the third and later so many times longer."""
    return ("shorter", "longer")[rank] if rank < 2 else f"{rank} times longer"


def _problems(split: Split) -> list[Problem]:
    found = []
    for opening in openings(split):
        rng = Random(opening)
        text = " ".join(opinion(rng, opening, random_grade(rng)).text for _ in range(_SENTENCES))
        found.append(Problem(opening, {"text": text, "opening": opening}))
    Random(split).shuffle(found)  # so that the first few are of all kinds
    return found
