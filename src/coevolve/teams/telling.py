"""An engine that passes turns to a callback while they are sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from coevolve.engines.base import BaseEngine
from coevolve.models import tokens
from coevolve.types import Asked, PolicyName, Role, Say, Turn

_HALF = "\ufffd"
"""The character that decoders write for a character whose bytes are incomplete."""


class Piece(NamedTuple):
    """The next text of a turn that is being sampled. A turn's pieces together are the beginning of its text, and may
    lack its end."""

    role: Role
    round: int
    text: str


OnPiece = Callable[[Piece | Turn], None]
"""A callback for every piece and, when it is complete, every turn; an exception that it raises ends the play."""


class StreamingEngine:
    """A wrapper of an engine that calls ``on_piece`` with every turn, and with its pieces if the engine samples token
    by token (``Say.on_token``)."""

    def __init__(self, engine: BaseEngine, on_piece: OnPiece) -> None:
        self._engine, self._on_piece = engine, on_piece

    def encode(self, policy: PolicyName, prompt: Asked) -> Sequence[int]:
        return self._engine.encode(policy, prompt)

    def context(self, policy: PolicyName) -> int:
        return self._engine.context(policy)

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        heard = {name: [self._heard(name, say) for say in some] for name, some in says.items()}
        spoken = self._engine.generate(heard)
        for turns in spoken.values():
            for turn in turns:
                self._on_piece(turn)
        return spoken

    def _heard(self, name: PolicyName, say: Say) -> Say:
        """Return the say with a callback that passes on its tokens as text: complete characters, each once."""
        tokenizer, ids, before = self._engine.published[name].tokenizer, list[int](), ""

        def token(id: int) -> None:
            nonlocal before
            ids.append(id)
            [text] = tokens.decode_actions(tokenizer, [(say.prompt_ids, ids)])
            if len(text) > len(before) and text.startswith(before) and not text.endswith(_HALF):
                self._on_piece(Piece(say.role, say.round, text[len(before) :]))
                before = text

        return dataclasses.replace(say, on_token=token)
