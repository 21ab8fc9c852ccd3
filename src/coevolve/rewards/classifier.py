"""A text-classification checkpoint as a scorer of texts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import cast

import torch

from coevolve.models.load import check_vocabulary, load_classifier, load_tokenizer

_ENDLESS = 1_000_000
"""Token limit of a text where neither model nor tokenizer states one."""


class Classifier:
    """The raw logit of one class of a text-classification checkpoint, as a function of texts.

    name: anything that ``load_classifier`` finds. device: "auto" is the GPU if there is one. batch_size: texts per
    forward pass. label: name of the class; None is the only class, or the positive one. Texts longer than the model's
    limit are truncated at the end, with one warning. A text without tokens (an empty one, if the tokenizer adds no
    special tokens) is read as a single EOS token, or a padding token if there is no EOS.

    Raises ValueError if the checkpoint has no such class or does not say which one is positive, or if
    the tokenizer has neither a padding nor an EOS token.
    """

    def __init__(self, name: str, device: str = "auto", batch_size: int = 64, label: str | None = None) -> None:
        model = load_classifier(name)
        self.tokenizer = load_tokenizer(name)
        check_vocabulary(self.tokenizer, model, name)
        labels = {int(i): str(word) for i, word in (model.config.id2label or {}).items()}
        self.column = _only(name, labels) if label is None else _named(name, labels, label)
        self.name = name
        self.batch_size = batch_size
        self.device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        if self.tokenizer.pad_token is None:  # as in many decoders; the mask hides it, and the model must know its id
            self.tokenizer.pad_token = self.tokenizer.eos_token
        model.config.pad_token_id = self.tokenizer.pad_token_id  # decoders classify at the last unpadded token
        self.limit = min(_positions(model) or _ENDLESS, self.tokenizer.model_max_length, _ENDLESS)
        eos, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        self.nothing = pad if eos is None else eos
        if self.nothing is None:
            raise ValueError(
                f"reward model {name!r}: its tokenizer has neither a padding nor an end token; name an eos_token in "
                "its tokenizer_config.json"
            )
        if model.config.model_type != "xlnet":  # which reads the last place; others count places from the first one
            self.tokenizer.padding_side = "right"
        self._told = False
        self.model = cast(torch.nn.Module, model).to(self.device).eval()  # transformers mistypes these two

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> list[float]:
        """Return one logit per text. The texts that it shares a batch with make no difference."""
        if not texts:
            return []
        ids = self.tokenizer(list(texts), truncation=True, max_length=self.limit)["input_ids"]
        full = [text for text, tokens in zip(texts, ids, strict=True) if len(tokens) == self.limit]
        self._warn_of_cut(full, len(texts))
        ids = [tokens or [self.nothing] for tokens in ids]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))  # similar lengths need the least padding
        logits = [0.0] * len(ids)
        for at in range(0, len(order), self.batch_size):
            chosen = order[at : at + self.batch_size]
            padded = self.tokenizer.pad({"input_ids": [ids[row] for row in chosen]}, return_tensors="pt")
            scores = self.model(**padded.to(self.device)).logits[:, self.column].float().tolist()
            for row, logit in zip(chosen, scores, strict=True):
                logits[row] = logit
        return logits

    def _warn_of_cut(self, full: Sequence[str], count: int) -> None:
        """Warn, once, how many of ``count`` texts were truncated. full: the texts that fill the token limit."""
        if self._told or not full:
            return
        whole = self.tokenizer(list(full), verbose=False)["input_ids"]  # transformers' own warning says less
        if cut := sum(len(tokens) > self.limit for tokens in whole):
            self._told = True
            warnings.warn(
                f"the reward model {self.name!r} reads {self.limit} tokens: {cut} of {count} texts lost their end, "
                "where answers stand; shorten its text template, or name a model with a longer context (said once)",
                stacklevel=3,
            )


def _positions(model: torch.nn.Module) -> int | None:
    """Return the number of usable position embeddings, None if unlimited. RoBERTa's begin after its padding index."""
    limit = getattr(model.config, "max_position_embeddings", None)
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    paddings = [table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None]
    return limit - paddings[0] - 1 if limit and paddings else limit


def _only(name: str, labels: dict[int, str]) -> int:
    """Return the index of the only class; else of the class named "positive", or LABEL_1 of two unnamed classes."""
    if len(labels) == 1:
        return next(iter(labels))
    wanted = "label_1" if {label.lower() for label in labels.values()} == {"label_0", "label_1"} else "positive"
    found = [index for index, label in labels.items() if label.lower() == wanted]
    if len(found) != 1:
        raise ValueError(
            f"reward model {name!r}: which of its classes {list(labels.values())} is the positive one? "
            "Name it POSITIVE in id2label of its config.json"
        )
    return found[0]


def _named(name: str, labels: dict[int, str], label: str) -> int:
    """Return the index of the class of this name."""
    found = [index for index, known in labels.items() if known == label]
    if len(found) != 1:
        raise ValueError(f"reward model {name!r} has no class {label!r}; it has {', '.join(labels.values())}")
    return found[0]
