"""The work that every contender is given: weights, prompts, forced lengths, reward.

One step is K problems, each played by N agents G times. Agent a's prompt of problem k is its own; the response of
member g ends after exactly ``lengths(...)[a, k, node, g]`` tokens, the end of sequence included. A node is what shares
a prompt: a problem (one turn), or the problem and then each joint response to it (a tree of two turns).

The vocabulary has one word per id, ``w17`` is 17, so that text and ids are the same thing for everybody. The last id is
the end of sequence, the one before it padding.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from coevolve.models.load import load_tokenizer

SIZES: dict[str, dict[str, int]] = {
    "1M": {"hidden_size": 128, "heads": 4, "kv_heads": 4, "num_hidden_layers": 3, "intermediate_size": 352},
    "10M": {"hidden_size": 320, "heads": 5, "kv_heads": 5, "num_hidden_layers": 7, "intermediate_size": 896},
    "50M": {"hidden_size": 640, "heads": 10, "kv_heads": 2, "num_hidden_layers": 11, "intermediate_size": 1792},
}
"""Qwen2 shapes with tied embeddings; the names are rough, and hold for the small vocabulary."""

LEARNING_RATE = 1e-6
NOTE = 8
"""Words that an agent is told before its second turn, behind its prompt and its own response."""

SHORTEST = 16
"""Ragged lengths reach from tokens / SHORTEST to tokens."""


@dataclass(frozen=True)
class Case:
    """One row of the comparison: N agents, K problems, G members, P prompt and R response tokens, V vocabulary.

    play: of several turns, ``rounds`` (each member goes on alone) or ``tree`` (every joint response has G
    continuations; two turns). model: a folder of real weights, whose name is the size and whose vocabulary is V; they
    hardly ever sample the end, so lengths are fixed.
    """

    size: str = "10M"
    agents: int = 2
    problems: int = 4
    members: int = 8
    prompt: int = 64
    tokens: int = 64
    vocabulary: int = 4096
    ragged: bool = True
    turns: int = 1
    play: Literal["rounds", "tree"] = "rounds"
    model: str | None = None

    def __post_init__(self) -> None:
        if self.model is not None and self.ragged:
            raise ValueError("the lengths of real weights' responses are fixed here")
        if self.play == "tree" and self.turns != 2:
            raise ValueError("a tree has two turns here")

    @property
    def nodes(self) -> int:
        """Groups of G responses per agent and problem."""
        return 1 + self.members if self.play == "tree" else self.turns

    @property
    def joints(self) -> int:
        """Joint responses of a step: one response of every agent each."""
        return self.problems * self.nodes * self.members

    @property
    def end(self) -> int:
        return self.vocabulary - 1

    @property
    def pad(self) -> int:
        return self.vocabulary - 2

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(f"agent{a}" for a in range(self.agents))

    def __str__(self) -> str:
        shape = f"{self.size} N={self.agents} K={self.problems} G={self.members} P={self.prompt} R={self.tokens}"
        kind = "ragged" if self.ragged else "fixed"
        turns = f"{self.turns} turns ({self.play})" if self.turns > 1 else "1 turn"
        return f"{shape} V={self.vocabulary} {kind}, {turns}"


def config(case: Case) -> Any:
    if case.model is not None:
        return AutoConfig.from_pretrained(case.model)
    shape = dict(SIZES[case.size])
    heads, kv_heads = shape.pop("heads"), shape.pop("kv_heads")
    return Qwen2Config(
        **shape, num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=case.vocabulary,
        max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=None, eos_token_id=case.end,
        pad_token_id=case.pad,
    )  # fmt: skip


def save_model(case: Case, folder: Path) -> str:
    """The folder of the model that everybody starts from: a random one, or the real one with the case's end."""
    torch.manual_seed(0)
    causal = Qwen2ForCausalLM(config(case)) if case.model is None else load_model(case.model)
    ends = {"bos_token_id": None, "eos_token_id": case.end, "pad_token_id": case.pad}
    for key, value in ends.items():
        setattr(causal.config, key, value)
    causal.generation_config = GenerationConfig(**ends)
    causal.save_pretrained(folder)
    load_tokenizer("coevolve-tiny").save_pretrained(folder)  # to be loaded with; everybody is given ``tokenizer``
    return str(folder)


def load_model(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def tokenizer(case: Case) -> PreTrainedTokenizerFast:
    """A tokenizer of its own, not loaded from the folder: transformers takes any in a Qwen2's folder for Qwen2's."""
    words = [f"w{i}" for i in range(case.vocabulary - 2)]
    core = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate([*words, "<pad>", "<eos>"])}, unk_token="<pad>")
    )
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", unk_token="<pad>", padding_side="left"
    )


def prompts(case: Case) -> list[list[str]]:
    """[agent][problem] -> P words."""
    return [[_words(case, case.prompt, "prompt", a, k) for k in range(case.problems)] for a in range(case.agents)]


def told_next(case: Case, prompt: str, response: str) -> str:
    """What an agent is told before its next turn."""
    return " ".join((prompt, response.strip(), _words(case, NOTE, "note")))


def _words(case: Case, n: int, *names: object) -> str:
    choose = random.Random(repr(names))
    return " ".join(f"w{choose.randrange(case.vocabulary - 2)}" for _ in range(n))


def lengths(case: Case, round: int) -> Tensor:
    """[N, K, nodes, G]: tokens of every response of this round, drawn log-uniformly or all the same."""
    shape = (case.agents, case.problems, case.nodes, case.members)
    if not case.ragged:
        return torch.full(shape, case.tokens)
    low, high = max(1, case.tokens // SHORTEST), case.tokens
    drawn = np.exp(np.random.default_rng(round).uniform(np.log(low), np.log(high + 1), shape))
    return torch.from_numpy(drawn.astype(np.int64)).clamp(low, high)


def worth(responses: Sequence[str]) -> float:
    """The team's reward: a number in [0, 1) that depends on every word and costs nothing."""
    return zlib.crc32("|".join(text.strip() for text in responses).encode()) / 2**32
