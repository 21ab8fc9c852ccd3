"""The training texts and objective of a language model, and its held-out perplexity."""

import math
from collections.abc import Sequence
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from coevolve.pretrain.corpus import documents
from coevolve.pretrain.recipe import CausalLMRecipe
from coevolve.pretrain.training import Loss

Ids = NDArray[np.int32]

_HELD_OUT_TOKENS = 20_000  # of each source, at most


def texts(recipe: CausalLMRecipe) -> list[str]:
    """Return all training documents of the mix, copies included."""
    return [
        text
        for source in recipe.sources
        for copy in range(source.repeat)
        for text in documents(source.name, Random(f"{recipe.seed}/{source.name}/{copy}"), held_out=False)
    ]


def objective(model: nn.Module, tokenizer: PreTrainedTokenizerBase, recipe: CausalLMRecipe) -> Loss:
    """Return the loss function: a step's mean next-token cross-entropy over its packed batch, in nats."""
    batches = PackedBatches(encode(tokenizer, texts(recipe)), recipe.sequence_length, recipe.batch_size, recipe.seed)

    def loss(step: int) -> Tensor:
        ids_BT = batches.at(step)
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1]
        return functional.cross_entropy(logits_BTV.flatten(0, 1).float(), ids_BT[:, 1:].flatten())

    return loss


class PackedBatches:
    """Batches of sequences of equal length, without padding, in an order that depends on (seed, step) alone; each
    sequence begins with a document or a piece of one.

    A document longer than a sequence is split into pieces; the last document of a sequence is cut to fit (the next pass
    over the data shuffles anew, and cuts elsewhere). The documents bring their end-of-text tokens.
    """

    def __init__(self, documents: Sequence[Sequence[int]], length: int, batch_size: int, seed: int) -> None:
        self._pieces: list[Ids] = [
            np.asarray(ids[start : start + length], dtype=np.int32)
            for ids in documents
            for start in range(0, len(ids), length)
        ]
        if sum(len(piece) for piece in self._pieces) < length * batch_size:
            raise ValueError(f"sources: too little text for one batch of {batch_size} sequences of {length} tokens")
        self._length, self._batch_size, self._seed = length, batch_size, seed
        self._epoch, self._first_row = -1, 0
        self._rows: Ids = np.empty((0, length), dtype=np.int32)

    def at(self, step: int) -> torch.Tensor:
        """Return the batch of a step: int64 [batch, length]."""
        wanted = range(step * self._batch_size, (step + 1) * self._batch_size)
        return torch.from_numpy(np.stack([self._row(i) for i in wanted]).astype(np.int64))

    def _row(self, index: int) -> Ids:
        if index < self._first_row:
            self._epoch, self._first_row, self._rows = -1, 0, self._rows[:0]
        while index >= self._first_row + len(self._rows):
            self._first_row += len(self._rows)
            self._epoch += 1
            self._rows = self._pack(self._epoch)
        row: Ids = self._rows[index - self._first_row]
        return row

    def _pack(self, epoch: int) -> Ids:
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._pieces))
        rows: list[Ids] = []
        current: list[Ids] = []
        room = self._length
        for i in order:
            current.append(self._pieces[i][:room])
            room -= len(current[-1])
            if room <= 0:
                rows.append(np.concatenate(current))
                current, room = [], self._length
        return np.stack(rows)


def encode(tokenizer: PreTrainedTokenizerBase, found: list[str]) -> list[list[int]]:
    """Return the token ids of each document, with an end-of-text token at the end."""
    ids = tokenizer(found, add_special_tokens=False, verbose=False)["input_ids"] if found else []
    return [[*document, tokenizer.eos_token_id] for document in ids]


@torch.no_grad()
def perplexities(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, names: list[str], length: int
) -> dict[str, float]:
    """Return the perplexity per token of each source's held-out part; each document is scored on its own, in pieces of
    `length` tokens."""
    model.eval()
    found = {}
    for name in names:
        total, count = 0.0, 0
        for document in encode(tokenizer, documents(name, Random(f"held-out/{name}"), held_out=True)):
            for start in range(0, len(document), length):
                piece = document[start : start + length]
                if len(piece) > 1 and count < _HELD_OUT_TOKENS:
                    ids = torch.tensor([piece])
                    logits = model(input_ids=ids).logits[0, :-1].float()
                    total += float(functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
                    count += len(piece) - 1
        found[name] = math.exp(total / count) if count else math.nan
    return found
