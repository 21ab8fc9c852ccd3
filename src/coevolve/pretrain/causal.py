"""The training texts and objective of a language model, and its held-out perplexity."""

import math
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from coevolve.pretrain.corpus import documents
from coevolve.pretrain.packing import PackedBatches
from coevolve.pretrain.recipe import CausalLMRecipe
from coevolve.pretrain.training import Loss

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
