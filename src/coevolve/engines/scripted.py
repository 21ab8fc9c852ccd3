"""An engine without a model, for tests of plays, tasks and credit: a script gives the text of every turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coevolve import noise
from coevolve.models.tokens import encode
from coevolve.types import Asked, PolicyName, Role, Say, Turn, WithTools

Script = Callable[[Role, str, int, int], str] | Mapping[tuple[Role, str, int, int], str]
"""(role, problem id, member, round) -> text of the turn."""

_END = 0
_LOGP = -1.0


class _Ids(list[int]):
    @property
    def input_ids(self) -> list[int]:
        return list(self)


class WordTokenizer:
    """A tokenizer whose tokens are words; the id of a word is its hash, hence the same in every process. 0 is the end
    of sequence."""

    bos_token_id = None
    eos_token_id = _END
    chat_template = "role: content"

    def __init__(self) -> None:
        self._words: dict[int, str] = {}

    def __call__(self, text: str, add_special_tokens: bool = True) -> _Ids:
        ids = _Ids()
        for word in text.split():
            ids.append(1 + noise.key(word) % (1 << 60))
            assert self._words.setdefault(ids[-1], word) == word, f"{word!r} and {self._words[ids[-1]]!r} share an id"
        return ids

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **options: Any) -> list[int]:
        text = " ".join(f"{message['role']}: {message.get('content', '')}" for message in messages)
        return list(self(text))

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self._words[i] for i in ids if i != _END)


class ScriptedEngine:
    """An engine whose turns have the script's text, an end of sequence, and log-probability -1 per token. Instructions
    are encoded as plain text; tools are left out of the prompt.

    calls: the says of each call of ``generate`` so far. ``read`` decodes prompt ids. A script that is a mapping and
    lacks a turn raises KeyError with that turn's key.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[dict[PolicyName, list[Say]]] = []
        self.tokenizer = WordTokenizer()

    def encode(self, policy: PolicyName, prompt: Asked) -> Sequence[int]:
        inner = prompt.prompt if isinstance(prompt, WithTools) else prompt
        return encode(self.tokenizer, inner, policy, chat=False)

    def read(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        self.calls.append({name: list(asked) for name, asked in says.items()})
        return {name: [self._turn(say) for say in asked] for name, asked in says.items()}

    def _turn(self, say: Say) -> Turn:
        place = (say.role, say.problem.id, say.member, say.round)
        text = self.script[place] if isinstance(self.script, Mapping) else self.script(*place)
        ids = [*self.tokenizer(text).input_ids, _END]
        return say.answered(ids, [_LOGP] * len(ids), text, finished=True)
