"""The lengths of a recipe's prompts, for a dry run: counted by each policy's tokenizer, and refused where training
would refuse them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coevolve.engines.base import check_fits
from coevolve.engines.scripted import Script, ScriptedEngine
from coevolve.models import names as models
from coevolve.models import tokens
from coevolve.models.load import load_config, load_tokenizer
from coevolve.models.policy import context_of
from coevolve.models.spec import PolicySpec
from coevolve.recipe.schema import Recipe
from coevolve.recipe.trust import code_in
from coevolve.rollout import Stage, rollout
from coevolve.types import Asked, Play, PolicyName, Problem, Say, Turn


@dataclass(frozen=True)
class _Reader:
    """What a policy reads prompts by: its tokenizer, its setting ``chat``, and its model's context length."""

    tokenizer: Any
    chat: tokens.Chat
    context: int


class _ReadingEngine(ScriptedEngine):
    """A scripted engine whose policies read prompts by their own tokenizers, and none that exceeds their context.

    longest: the most tokens of a prompt of each policy. Policies without a reader read words, and as many as they get.
    """

    def __init__(self, script: Script, readers: Mapping[PolicyName, _Reader]) -> None:
        super().__init__(script)
        self.readers, self.longest = readers, dict.fromkeys(readers, 0)

    def encode(self, policy: PolicyName, prompt: Asked) -> Sequence[int]:
        if policy not in self.readers:
            return super().encode(policy, prompt)
        reader = self.readers[policy]
        return tokens.encode(reader.tokenizer, prompt, policy, reader.chat)

    def context(self, policy: PolicyName) -> int | None:
        return self.readers[policy].context if policy in self.readers else None

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        for name, reader in self.readers.items():
            for say in says.get(name, ()):
                check_fits(say, reader.context)
                self.longest[name] = max(self.longest[name], len(say.prompt_ids))
        return super().generate(says)


def prompt_lengths(
    recipe: Recipe, play: Play, problems: Sequence[Problem], stage: Stage, script: Script
) -> Iterator[str]:
    """Yield, as comments, the longest prompt of each policy of this stage, on these problems, each played once.

    Raises ValueError for a prompt that leaves no room for the new tokens in its model's context, as training does.
    Learners and engines of one's own, which may have another tokenizer or limit, are left out.
    """
    if code_in([recipe.learner, *recipe.engines]):
        return
    found = {name: _reader(recipe.policies[name]) for name in dict.fromkeys(stage.cast.values())}
    readers = {name: one for name, one in found.items() if isinstance(one, _Reader)}
    engine = _ReadingEngine(script, readers)
    if readers:
        rollout(play, problems, dataclasses.replace(stage, engine=engine))
    for name, longest in engine.longest.items():
        if longest:  # else it was never asked
            context = f"its model's context is {readers[name].context:,}"
            yield f"#   {name} reads at most {longest:,} tokens ({len(problems)} problems, empty answers); {context}"
    for why in dict.fromkeys(one for one in found.values() if isinstance(one, str)):
        names = ", ".join(name for name, one in found.items() if one == why)
        yield f"#   how many tokens {names} would read is not known: {why}"


def _reader(spec: PolicySpec) -> _Reader | str:
    """Return what a policy reads prompts by, or the reason why it is not here: training tries again."""
    if models.is_to_pretrain(spec.model):
        return f"{spec.model} has yet to be pre-trained"
    try:
        return _Reader(
            context=context_of(load_config(spec.model)), tokenizer=load_tokenizer(spec.model), chat=spec.chat
        )
    except ValueError as error:
        return str(error)
