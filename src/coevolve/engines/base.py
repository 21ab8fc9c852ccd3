"""The base class of engines: published policies, prompts to token ids, sampled token ids to turns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from coevolve.faults import ShortageError
from coevolve.files import shown
from coevolve.interfaces import Published
from coevolve.models import tokens
from coevolve.types import Asked, PolicyName, Say, Turn


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled completion: token ids, their log-probabilities at the say's temperature, whether it reached its end
    of sequence.

    excess: what truncated sampling added to the log-probabilities, in nats. version: the version of the weights that
    sampled it; None for the version that was published last.
    """

    action_ids: list[int]
    logps: list[float]
    finished: bool
    excess: float = 0.0
    version: int | None = None


class BaseEngine:
    """An engine without the sampling: a subclass implements ``sample``, and extends ``publish`` to fetch the weights.

    published: by policy, the weights that are sampled now. scores: False for an engine that gives NaN instead of
    log-probabilities: no policy can learn from its turns (the gate stops a policy that tries), but the policies can be
    partners and be evaluated.
    """

    scores = True

    def __init__(self) -> None:
        self.published: dict[PolicyName, Published] = {}

    def publish(self, news: Sequence[Published]) -> None:
        """Record the policies' weights that are sampled from now on. Raises ValueError for a policy whose tokenizer
        lacks the chat template, or the template's keywords, that its spec asks for."""
        for new in news:
            tokens.check_chat(new.tokenizer, new.spec.chat, new.name)
            self.published[new.name] = new

    def encode(self, policy: PolicyName, prompt: Asked) -> Sequence[int]:
        """Return the token ids of a prompt (see ``models.tokens``)."""
        speaker = self.published[policy]
        return tokens.encode(speaker.tokenizer, prompt, policy, speaker.spec.chat)

    def context(self, policy: PolicyName) -> int:
        """Return the context length of a policy's model: prompt and new tokens together."""
        return self.published[policy].context

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        """Sample one turn per say, in the order given.

        Raises ValueError for a prompt too long for the context, for turns of another length than was asked for, and
        for log-probabilities that are not finite.
        """
        for asked in says.values():
            for say in asked:
                self.check_context(say)
        try:
            sampled: Any = self.sample(says)  # Any: a subclass may return anything
        except ShortageError:
            raise  # its message is complete
        except OSError as error:
            raise OSError(f"the engine {type(self).__name__} does not answer: {error}") from error
        if not isinstance(sampled, Mapping) or not says.keys() <= sampled.keys():
            want = f"policy -> a list of Samples, for {', '.join(says)}"
            raise ValueError(f"{type(self).__name__}.sample returned {shown(sampled)}; want {want}")
        return {name: self._turns(self.published[name], says[name], sampled[name]) for name in says}

    def sample(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, Sequence[Sample]]:
        """Sample one completion per say, in the order given."""
        raise NotImplementedError(f"{type(self).__name__} has no `sample`, which every engine has")

    def check_context(self, say: Say) -> None:
        """Raise ValueError for a prompt that leaves no room for the new tokens."""
        _check_context(say, self.context(say.policy))

    def turn(self, say: Say, sample: Sample) -> Turn:
        """Return one sample as a turn."""
        return self._turns(self.published[say.policy], [say], [sample])[0]

    def rest(self) -> None:
        """Do nothing: the base class holds no memory between rollouts."""

    def close(self) -> None:
        """Do nothing: the base class starts no processes."""

    def _turns(self, speaker: Published, says: Sequence[Say], sampled: Any) -> list[Turn]:
        """Check the samples of one policy and return them as turns, with their text."""
        if not isinstance(sampled, Sequence):
            found = f"{shown(sampled)} for policy {speaker.name!r}"
            raise ValueError(f"{type(self).__name__}.sample returned {found}; want a list of Samples")
        if len(sampled) != len(says):
            raise ValueError(f"{type(self).__name__} was asked for {len(says)} turns and sampled {len(sampled)}")
        if not says:
            return []
        for say, row in zip(says, sampled, strict=True):
            _check_types(say, row, f"{type(self).__name__}.sample")
            _check(say, row, speaker, self.scores)
        ids = [(say.prompt_ids, row.action_ids) for say, row in zip(says, sampled, strict=True)]
        return [
            say.answered(row.action_ids, row.logps, text, row.finished, row.excess, _version(row, speaker))
            for say, row, text in zip(says, sampled, tokens.decode_actions(speaker.tokenizer, ids), strict=True)
        ]


def _check_context(say: Say, context: int) -> None:
    prompt, new = len(say.prompt_ids), say.sampling.length_range[1]
    if prompt + new > context:
        raise ValueError(
            f"{say.where}: a prompt of {prompt} tokens and {new} new ones exceed the model's context of {context}; "
            "shorten the task's prompts, lower sampling.max_new_tokens, or use a model with a longer context"
        )


def _version(row: Sample, speaker: Published) -> int:
    return speaker.version if row.version is None else row.version


def _check_types(say: Say, row: Any, source: str) -> None:
    """Raise ValueError for a sample that is no ``Sample`` of plain ints and floats, which all later code relies on."""
    where = f"{say.where}: {source} returned"
    if not isinstance(row, Sample):
        raise ValueError(f"{where} {shown(row)}; want Sample(action_ids, logps, finished)")
    for name, numbers, kinds, want in (
        ("action_ids", row.action_ids, int, "ints"),
        ("logps", row.logps, Real, "floats"),
    ):
        if not isinstance(numbers, Sequence) or not all(issubclass(kind, kinds) for kind in set(map(type, numbers))):
            raise ValueError(f"{where} a Sample whose {name} is {shown(numbers)}; want a list of {want} (`.tolist()`)")


def _check(say: Say, row: Sample, speaker: Published, scores: bool) -> None:
    """Raise ValueError for a sample that cannot be a turn: its lengths, its end of sequence, its log-probabilities."""
    ids, logps, ended = len(row.action_ids), len(row.logps), bool(row.action_ids) and row.action_ids[-1] in speaker.eos
    if ids == 0 or ids != logps or row.finished != ended:
        raise ValueError(
            f"{say.where}: the engine sampled {ids} ids with {logps} log-probabilities, finished: {row.finished}; "
            "want at least one, as many of both, and the end of sequence as the last id of those that finished and of "
            "no others"
        )
    if scores and (early := [i for i in row.action_ids[:-1] if i in speaker.eos]):
        raise ValueError(
            f"{say.where}: the engine sampled on behind an end of sequence, id {early[0]}; want it as the last id "
            "alone: what comes behind it is no part of a turn"
        )
    most = say.sampling.length_range[1]
    # An engine without log-probabilities counts tokens by another tokenizer, and no policy learns from its turns.
    if scores and (ids > most or (ids < most and not row.finished)):
        raise ValueError(
            f"{say.where}: the engine sampled {ids} ids, finished: {row.finished}, where {most} were asked for; want "
            "so many, or fewer up to the end of sequence: a turn that was cut short would be learnt from as a whole one"
        )
    if scores and not math.isfinite(sum(row.logps)):
        raise ValueError(
            f"{say.where}: the model's probabilities are not finite; its weights have diverged: go back to a "
            "checkpoint and lower the learning rate"
        )
