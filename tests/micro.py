"""Micro models and their tokenizer, for whoever makes another than the fixtures."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

CHARACTERS = string.ascii_lowercase + string.digits + " \n.,!?'\"-:;()/+*=$%&#@_<>"
VOCABULARY = ["<pad>", "<eos>", "<unk>", *CHARACTERS]


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One lower-case character is one token: ids are easy to predict in a test. <pad> is 0, <eos> is 1."""
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(VOCABULARY)}, unk_token="<unk>"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", model_max_length=256
    )


def save_micro(model: PreTrainedModel, folder: Path) -> str:
    with torch.no_grad():
        for parameter in model.parameters():  # larger than a usual start, so that distributions are far from uniform
            if parameter.ndim == 2:
                parameter.mul_(6.0)
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return str(folder)
