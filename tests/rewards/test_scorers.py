"""The two sentiment scorers. Expected numbers are sums over vader_lexicon.txt, done by hand."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BloomConfig,
    BloomForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from coevolve.rewards.classifier import Classifier
from coevolve.rewards.sentiment import lexicon, scorer
from coevolve.rewards.several import rewards_of
from coevolve.types import Case, Problem, Turn

WORDS = ["<pad>", "<end>", "good", "bad", "film", "the", "was"]


@pytest.mark.parametrize(
    ("text", "sum_of_valences"),
    [
        ("The table has four legs.", 0.0),
        ("The film was great", 3.1),
        ("a terrible, boring film", -3.4),  # -2.1 - 1.3
        ("great and wonderful and bad", 3.3),  # 3.1 + 2.7 - 2.5
        ("not good", -1.406),  # negation: 1.9 * -0.74
        ("very good", 2.193),  # degree: 1.9 + 0.293
        ("bad but good", 1.6),  # "but": half of what is before, one and a half of what is after: -1.25 + 2.85
    ],
)
def test_lexicon_is_the_sum_of_valences(text: str, sum_of_valences: float) -> None:
    assert lexicon([text]) == pytest.approx([sum_of_valences])


def test_lexicon_has_no_bound() -> None:
    """Repetition pays by the word, so a collapse shows. VADER's own compound score would stop at 1."""
    assert lexicon([" ".join(["great"] * n) for n in (1, 10, 100)]) == pytest.approx([3.1, 31.0, 310.0])


def test_lexicon_ignores_punctuation_marks() -> None:
    assert lexicon(["great!!!!", "great"]) == pytest.approx([3.1, 3.1])


def test_lexicon_scores_each_text_alone() -> None:
    assert lexicon(["good", "bad", "", "good"]) == pytest.approx([1.9, -2.5, 0.0, 1.9])
    assert lexicon([]) == []


Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Saves a micro classifier with random weights; returns its folder."""

    def save(labels: list[str], decoder: bool = False, limit: int = 32) -> Path:
        torch.manual_seed(0)
        shape = {"vocab_size": len(WORDS), "id2label": dict(enumerate(labels))}
        shape["label2id"] = {label: i for i, label in enumerate(labels)}
        model: BertForSequenceClassification | GPT2ForSequenceClassification
        if decoder:
            config = GPT2Config(
                n_embd=8, n_layer=1, n_head=1, n_positions=limit, bos_token_id=1, eos_token_id=1, **shape
            )
            model = GPT2ForSequenceClassification(config)
        else:
            sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
            model = BertForSequenceClassification(BertConfig(max_position_embeddings=limit, **sizes, **shape))
        words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="the"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        special = {} if decoder else {"pad_token": "<pad>"}
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", **special).save_pretrained(tmp_path)
        model.save_pretrained(tmp_path)
        return tmp_path

    return save


def _by_hand(folder: Path, ids: list[int], positive: int, decoder: bool = False) -> float:
    """The logit of one text alone, without any padding."""
    kind = GPT2ForSequenceClassification if decoder else BertForSequenceClassification
    model = kind.from_pretrained(folder).eval()
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([ids])).logits[0, positive])


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize(("labels", "positive"), [(["NEGATIVE", "POSITIVE"], 1), (["positive", "negative"], 0)])
def test_classifier_returns_the_raw_logit_of_the_positive_class(
    build: Build, labels: list[str], positive: int, decoder: bool
) -> None:
    folder = build(labels, decoder)
    score = Classifier(str(folder), batch_size=2)
    got = score(["the film was good", "bad", "the good the bad the film"])
    want = [_by_hand(folder, ids, positive, decoder) for ids in ([5, 4, 6, 2], [3], [5, 2, 5, 3, 5, 4])]
    assert got == pytest.approx(want, abs=1e-5)


def test_classifier_with_unnamed_classes(build: Build) -> None:
    folder = build(["LABEL_0", "LABEL_1"])
    assert Classifier(str(folder))(["good"]) == pytest.approx([_by_hand(folder, [2], 1)], abs=1e-5)


@pytest.mark.parametrize("labels", [["joy", "anger"], ["LABEL_0", "LABEL_1", "LABEL_2"]])
def test_classifier_without_a_positive_class(build: Build, labels: list[str]) -> None:
    folder = build(labels)
    with pytest.raises(ValueError, match=r"which of its classes .* is the positive one\? Name it POSITIVE"):
        Classifier(str(folder))


def test_classifier_cuts_texts_at_the_limit_of_the_model(build: Build) -> None:
    score = Classifier(str(folder := build(["negative", "positive"], limit=4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [cut] = score(["the film was good"])  # all there is room for
    with pytest.warns(UserWarning, match="lost their end") as told:
        long, *_ = score(["the film was good bad bad", "the film was bad good", "bad"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score(["the film was good bad"])
    assert str(told[0].message) == (
        f"the reward model {str(folder)!r} reads 4 tokens: 2 of 3 texts lost their end, where answers stand; shorten "
        "its text template, or name a model with a longer context (said once)"
    )
    assert long == pytest.approx(cut, abs=1e-6)


def test_classifier_reads_behind_padding_that_the_model_was_not_saved_with(build: Build) -> None:
    """The model's own padding id is another token's, so a decoder would take the padding for the text's end."""
    folder = build(["negative", "positive"], decoder=True)
    config = GPT2Config.from_pretrained(folder, pad_token_id=5)
    config.save_pretrained(folder)
    score = Classifier(str(_tokenizer(folder, pad_token="<pad>")))
    want = [_by_hand(folder, ids, 1, decoder=True) for ids in ([2], [5, 2, 5, 3, 5, 4])]
    assert score(["good", "the good the bad the film"]) == pytest.approx(want, abs=1e-5)


def test_classifier_without_a_limit_reads_all(build: Build) -> None:
    """Neither the model nor the tokenizer says how many tokens they take."""
    folder = build(["negative", "positive"])
    sizes = {"hidden_size": 8, "n_layer": 1, "n_head": 1, "vocab_size": len(WORDS), "pad_token_id": 0}
    BloomForSequenceClassification(BloomConfig(id2label={0: "negative", 1: "positive"}, **sizes)).save_pretrained(
        folder
    )
    good, bad = Classifier(str(folder))(["the film was " * 500 + end for end in ("good", "bad")])
    assert good != pytest.approx(bad)  # by its last word


def test_classifier_of_nothing(build: Build) -> None:
    score = Classifier(str(build(["negative", "positive"])))
    assert score([]) == []


def test_classifier_cuts_texts_where_positions_begin_behind_the_padding(build: Build) -> None:
    """Of six positions two lie before the first token's."""
    folder = build(["negative", "positive"])
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    shape = {"vocab_size": len(WORDS), "pad_token_id": 1, "id2label": {0: "negative", 1: "positive"}}
    config = RobertaConfig(max_position_embeddings=6, **sizes, **shape)
    RobertaForSequenceClassification(config).save_pretrained(folder)
    score = Classifier(str(folder))
    with pytest.warns(UserWarning, match="reads 4 tokens: 1 of 2 texts lost their end"):
        long, cut = score(["the film was good bad bad bad bad", "the film was good"])
    assert long == pytest.approx(cut, abs=1e-6)
    assert score.limit == 4


@pytest.mark.parametrize(("decoder", "side"), [(False, "right"), (True, "right"), (True, "left")])
def test_classifier_reads_a_text_without_tokens_as_its_end(build: Build, decoder: bool, side: str) -> None:
    folder = build(["negative", "positive"], decoder)
    score = Classifier(str(_tokenizer(folder, padding_side=side)))
    want = [_by_hand(folder, ids, 1, decoder) for ids in ([2, 4, 3], [1], [1])]
    assert score(["good film bad", "", " \n"]) == pytest.approx(want, abs=1e-5)


def test_classifier_reads_a_text_without_tokens_as_padding_where_nothing_ends_one(build: Build) -> None:
    folder = _tokenizer(build(["negative", "positive"]), eos_token=None)
    want = [_by_hand(folder, ids, 1) for ids in ([2, 4], [0])]
    assert Classifier(str(folder))(["good film", ""]) == pytest.approx(want, abs=1e-5)


def test_classifier_has_nothing_to_read_where_no_token_ends_or_pads(build: Build) -> None:
    folder = _tokenizer(build(["negative", "positive"]), eos_token=None, pad_token=None)
    with pytest.raises(ValueError, match="its tokenizer has neither a padding nor an end token; name an eos_token"):
        Classifier(str(folder))([""])


def _tokenizer(folder: Path, **changes: Any) -> Path:
    """The folder, with other settings of its tokenizer."""
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


def test_scorer_by_name(build: Build) -> None:
    assert scorer("lexicon") is lexicon
    assert isinstance(scorer(str(build(["negative", "positive"]))), Classifier)
    with pytest.raises(ValueError, match="no such folder"):
        scorer("./nowhere")


def _said(folder: Path, texts: list[dict[str, str]], **settings: Any) -> list[list[float]]:
    problem = Problem("p", {"prompt": "the film was"})
    cases = [
        Case(problem, tuple(Turn(role, "llm", problem, 0, 0, (), (), (), text, True) for role, text in one.items()))
        for one in texts
    ]
    rewards = rewards_of({"name": "classifier", "model": str(folder), **settings})
    rewards.check(problem, list(texts[0]))
    return rewards(cases)


def test_a_reward_model_of_one_class(build: Build) -> None:
    folder = build(["LABEL_0"])
    found = _said(folder, [{"a": "good", "b": "bad"}, {"a": "bad", "b": "bad"}])
    good, bad = (_by_hand(folder, [id], 0) for id in (2, 3))
    assert found == [pytest.approx([good, bad], abs=1e-5), pytest.approx([bad, bad], abs=1e-5)]


def test_a_reward_model_reads_what_the_template_says(build: Build) -> None:
    folder = build(["joy", "anger"])
    found = _said(folder, [{"a": "good", "b": "bad"}], text="{prompt} {said}", label="anger")
    want = [_by_hand(folder, [5, 4, 6, id], 1) for id in (2, 3)]
    assert found == [pytest.approx(want, abs=1e-5)]
    team = _said(folder, [{"a": "good", "b": "bad"}], text="{a} {b}", label="joy")
    assert team == [pytest.approx([_by_hand(folder, [2, 3], 0)] * 2, abs=1e-5)]
    with pytest.raises(ValueError, match="has no class 'fear'; it has joy, anger"):
        _said(folder, [{"a": "good"}], label="fear")
