"""The training texts and objective of a sentiment classifier: reviews and, as it will score short texts, crops of them;
and its held-out accuracy."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from coevolve.pretrain.corpus import labelled
from coevolve.pretrain.recipe import ClassifierRecipe
from coevolve.pretrain.training import Loss

_CROP_TOKENS = (8, 40)  # shortest and longest crop where a sequence has room


def texts(recipe: ClassifierRecipe) -> list[str]:
    """Return all training texts."""
    return [text for text, _ in labelled(recipe.source, held_out=False)]


def objective(model: nn.Module, tokenizer: PreTrainedTokenizerBase, recipe: ClassifierRecipe) -> Loss:
    """Return the loss function: a step's mean cross-entropy, on reviews at even steps, and at odd steps on crops of
    8-40 tokens, as far as a sequence has room, with the label of their review."""
    rows = labelled(recipe.source, held_out=False)
    ids = _encode(tokenizer, [text for text, _ in rows])
    labels = torch.tensor([label for _, label in rows])
    room = recipe.sequence_length - 1  # the first token is <|cls|>

    def loss(step: int) -> Tensor:
        rng = np.random.default_rng([recipe.seed, step])
        chosen = rng.integers(len(ids), size=recipe.batch_size)
        lengths = rng.integers(_CROP_TOKENS[0], _CROP_TOKENS[1] + 1, size=recipe.batch_size)
        pieces = [
            _crop(ids[i], min(int(length), room) if step % 2 else room, rng)
            for i, length in zip(chosen, lengths, strict=True)
        ]
        return functional.cross_entropy(_logits(model, tokenizer, pieces).float(), labels[chosen])

    return loss


@torch.no_grad()
def accuracies(model: nn.Module, tokenizer: PreTrainedTokenizerBase, recipe: ClassifierRecipe) -> dict[str, float]:
    """Return the share of held-out texts that are labelled correctly, by their beginning and by one crop of each."""
    model.eval()
    rows = labelled(recipe.source, held_out=True)
    ids = _encode(tokenizer, [text for text, _ in rows])
    rng, room = np.random.default_rng(0), recipe.sequence_length - 1  # the first token is <|cls|>
    views = {
        "accuracy": [document[:room] for document in ids],
        "accuracy_of_crops": [_crop(document, min(_CROP_TOKENS[1], room), rng) for document in ids],
    }
    return {name: _accuracy(model, tokenizer, pieces, [y for _, y in rows]) for name, pieces in views.items()}


def _accuracy(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, pieces: list[list[int]], labels: list[int]
) -> float:
    right = 0
    for start in range(0, len(pieces), 64):
        guessed = _logits(model, tokenizer, pieces[start : start + 64]).argmax(-1).tolist()
        right += sum(g == y for g, y in zip(guessed, labels[start : start + 64], strict=True))
    return right / len(pieces)


def _encode(tokenizer: PreTrainedTokenizerBase, found: list[str]) -> list[list[int]]:
    ids: list[list[int]] = tokenizer(found, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _crop(ids: list[int], length: int, rng: np.random.Generator) -> list[int]:
    start = int(rng.integers(max(1, len(ids) - length + 1)))
    return ids[start : start + length]


def _logits(model: nn.Module, tokenizer: PreTrainedTokenizerBase, pieces: list[list[int]]) -> Tensor:
    """Return the logits [rows, 2] of texts given as token ids without special tokens, which are added here."""
    rows = [[tokenizer.cls_token_id, *piece] for piece in pieces]
    width = max(len(row) for row in rows)
    ids_BT = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    mask_BT = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    logits: Tensor = model(input_ids=ids_BT, attention_mask=mask_BT).logits
    return logits
