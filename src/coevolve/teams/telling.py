"""An engine whose turns somebody hears while they are sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from coevolve.engines.base import BaseEngine
from coevolve.models import tokens
from coevolve.types import Asked, PolicyName, Role, Say, Turn

_HALF = "\ufffd"
"""What decoders write for a character of which bytes are missing."""


class Piece(NamedTuple):
    """The next text of a turn that is being sampled. The pieces of a turn are the beginning of its text."""

    role: Role
    round: int
    text: str


Told = Callable[[Piece | Turn], None]
"""Hears every piece and, when it is whole, every turn; what it raises ends the play."""


class Telling:
    """An engine that tells what it samples, as it does so where it can (``Say.told``)."""

    def __init__(self, engine: BaseEngine, told: Told) -> None:
        self._engine, self._told = engine, told

    def encode(self, policy: PolicyName, prompt: Asked) -> Sequence[int]:
        return self._engine.encode(policy, prompt)

    def context(self, policy: PolicyName) -> int:
        return self._engine.context(policy)

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        heard = {name: [self._heard(name, say) for say in some] for name, some in says.items()}
        spoken = self._engine.generate(heard)
        for turns in spoken.values():
            for turn in turns:
                self._told(turn)
        return spoken

    def _heard(self, name: PolicyName, say: Say) -> Say:
        """The same say, whose tokens are told as text: characters that are whole, once each."""
        tokenizer, ids, before = self._engine.published[name].tokenizer, list[int](), ""

        def token(id: int) -> None:
            nonlocal before
            ids.append(id)
            [text] = tokens.said(tokenizer, [(say.prompt_ids, ids)])
            if len(text) > len(before) and text.startswith(before) and not text.endswith(_HALF):
                self._told(Piece(say.role, say.round, text[len(before) :]))
                before = text

        return dataclasses.replace(say, told=token)
