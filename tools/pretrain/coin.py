"""Makes ``coevolve-coin``, the model of the task ``game``: ``python tools/pretrain/coin.py FOLDER``.

A Llama of a few hundred weights that knows four tokens, C, D, c and d, and nothing else: no start, no end. Every token
is a move, and its output layer is zero, so before training a move is a fair coin.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as kinds
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TOKENS = "CDcd"


def make(folder: Path, seed: int = 0) -> None:
    """Write the model and its tokenizer, one character a token, as a transformers folder."""
    core = Tokenizer(kinds.WordLevel({token: i for i, token in enumerate(TOKENS)}))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    wrap: Any = PreTrainedTokenizerFast  # untyped
    wrap(tokenizer_object=core).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, initializer_range=0.5, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write the model, e.g. src/coevolve/assets/coevolve-coin")
    make(parser.parse_args().folder)
