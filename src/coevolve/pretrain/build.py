"""The initial tokenizer and model of a pre-training run."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from coevolve.faults import blame
from coevolve.models import load as models
from coevolve.models.policy import context_of
from coevolve.pretrain import causal, classifier
from coevolve.pretrain.recipe import CausalLMRecipe, Recipe
from coevolve.pretrain.tokenizer import train_tokenizer


def build_tokenizer(recipe: Recipe, folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of `start`, or one trained on the run's texts and saved in the run folder, from which a
    resumed run loads it."""
    if recipe.start is not None:
        return models.load_tokenizer(recipe.start)
    kept = folder / "tokenizer"
    if not (kept / "tokenizer_config.json").is_file():
        assert recipe.vocab_size is not None  # checked by the schema
        is_classifier = recipe.kind == "classifier"
        found = causal.texts(recipe) if isinstance(recipe, CausalLMRecipe) else classifier.texts(recipe)
        train_tokenizer(found, recipe.vocab_size, is_classifier).save_pretrained(kept)
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(kept)
    return tokenizer


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Return the model of `start`, or one of the recipe's architecture with random weights given by its seed; float32.

    Raises ValueError for a sequence_length beyond the model's positions."""
    is_lm = isinstance(recipe, CausalLMRecipe)
    torch.manual_seed(recipe.seed)
    if recipe.start is not None:
        model = models.load_causal_lm(recipe.start) if is_lm else models.load_classifier(recipe.start)
        models.check_vocabulary(tokenizer, model, recipe.start)
    else:
        assert recipe.architecture is not None  # checked by the schema
        model = _random(recipe.architecture, tokenizer, is_lm)
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
