"""A team without a model: what each says is a function of the request, and what the team is paid one of the texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from coevolve import Case, Problem, Sampling, ScriptedEngine, chain, noise
from coevolve.diagnose.scene import Scene
from coevolve.types import Play, Say, Turn

CAST = {"a": "ann", "b": "bob"}


class Parlour(ScriptedEngine):
    """Says whatever ``speak`` makes of a request and of the words of its prompt."""

    def __init__(self, speak: Callable[[Say, list[str]], str]) -> None:
        super().__init__({})
        self.speak = speak

    def _turn(self, say: Say) -> Turn:
        text = self.speak(say, self.read(say.prompt_ids).split())
        return say.answered([*self.tokenizer(text).input_ids, 0], [0.0], text, finished=True)


class Paid:
    """Pays every turn ``worth`` of the texts by role. A prompt is the problem, the role and what it heard."""

    def __init__(self, worth: Callable[..., float], problems: int = 64) -> None:
        self.train = self.test = [Problem(f"p{i}") for i in range(problems)]
        self.worth = worth
        self.heard: list[tuple[str, str, list[str]]] = []

    def prompt(self, p: Problem, role: str, heard: Sequence[Turn | str]) -> str:
        texts = [item if isinstance(item, str) else item.text for item in heard]
        self.heard.append((p.id, role, texts))
        return " ".join([p.id, role, *texts])

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        return [[self.worth(**{t.role: t.text for t in case.turns})] * len(case.turns) for case in cases]


def coin(say: Say, words: list[str]) -> str:
    """1 or 0, with even odds."""
    return str(int(noise.uniform(torch.tensor([say.key]), 0) < 0.5))


def scene(
    task: Any, speak: Callable[[Say, list[str]], str] = coin, play: Play | None = None,
    cast: Mapping[str, str] = CAST, members: int = 2,
) -> Scene:  # fmt: skip
    return Scene(play or chain(), cast, task, Parlour(speak), Sampling(4), task.test, members)
