"""The initial tokenizer and model of a pre-training run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from coevolve.faults import blame
from coevolve.models.policy import context_of
from coevolve.pretrain import causal, classifier
from coevolve.pretrain.recipe import END, CausalLMRecipe, Recipe

_PAD, _CLS = "<|pad|>", "<|cls|>"


def build_tokenizer(recipe: Recipe, folder: Path) -> PreTrainedTokenizerBase:
    """Return a tokenizer trained on the run's texts and saved in the run folder, from which a resumed run loads it."""
    kept = folder / "tokenizer"
    if not (kept / "tokenizer_config.json").is_file():
        is_classifier = recipe.kind == "classifier"
        found = causal.texts(recipe) if isinstance(recipe, CausalLMRecipe) else classifier.texts(recipe)
        train_tokenizer(found, recipe.vocab_size, is_classifier).save_pretrained(kept)
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(kept)
    return tokenizer


def train_tokenizer(texts: Iterable[str], vocab_size: int, classifier: bool) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of at most `vocab_size` tokens. Its padding token is not its end of text, which
    is trained on.

    A classifier's tokenizer puts `<|cls|>` before each text; a language model's adds nothing.
    """
    special = [END, _PAD, _CLS] if classifier else [END, _PAD]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if classifier:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{_CLS} $A", special_tokens=[(_CLS, tokenizer.token_to_id(_CLS))]
        )
    make: Any = PreTrainedTokenizerFast  # untyped
    wrapped: PreTrainedTokenizerFast = make(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=_PAD,
        cls_token=_CLS if classifier else None,
        padding_side="right" if classifier else "left",
        clean_up_tokenization_spaces=False,
    )
    return wrapped


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Return a float32 model of the recipe's architecture with random weights given by its seed.

    Raises ValueError for a mistake in the architecture, and for a sequence_length beyond the model's positions."""
    torch.manual_seed(recipe.seed)
    model = _random(recipe.architecture, tokenizer, isinstance(recipe, CausalLMRecipe))
    if recipe.sequence_length > context_of(model.config):
        raise ValueError(
            f"sequence_length is {recipe.sequence_length}; the model has {context_of(model.config)} positions, so want "
            "at most that"
        )
    return model


def _random(architecture: dict[str, Any], tokenizer: PreTrainedTokenizerBase, is_lm: bool) -> PreTrainedModel:
    """Return a model of this architecture with random weights, and the tokenizer's vocabulary and special tokens."""
    rest = dict(architecture)
    kind = rest.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        raise ValueError(f"architecture.model_type: transformers has no model type {kind!r}, e.g. 'llama' or 'bert'")
    make: Any = CONFIG_MAPPING[kind]
    known = make().to_dict()
    for key in rest:
        if key not in known:
            raise ValueError(f"architecture.{key}: not a setting of {kind}; see its transformers config class")
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad", "cls")}
    special["sep_token_id"] = tokenizer.eos_token_id
    auto: Any = AutoModelForCausalLM if is_lm else AutoModelForSequenceClassification
    with blame("architecture"):  # for any exception that transformers raises for these settings
        config = make(**rest, vocab_size=len(tokenizer), **{key: id for key, id in special.items() if key in known})
        if not is_lm:
            config.id2label = {0: "NEGATIVE", 1: "POSITIVE"}
        model: PreTrainedModel = auto.from_config(config, dtype=torch.float32)
    return model
