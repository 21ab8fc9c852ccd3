"""How a model is pre-trained: its learning rate by hand, what decays, what is clipped, what is read how often."""

import math
from random import Random
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from coevolve.pretrain import causal, classifier, corpus, training
from coevolve.pretrain.recipe import CausalLMRecipe, ClassifierRecipe

RECIPE = {
    "kind": "causal_lm", "steps": 100, "learning_rate": 2.0, "warmup_steps": 10, "weight_decay": 0.25, "batch_size": 2,
    "sequence_length": 32, "vocab_size": 400, "architecture": {"model_type": "llama"}, "output_dir": "x",
}  # fmt: skip


def recipe(**changes):
    return CausalLMRecipe(**(RECIPE | {"sources": [{"name": "opinions"}]} | changes))


def test_the_rate_rises_to_its_peak_and_falls_to_a_twentieth():
    rates = [training.learning_rate(step, recipe()) for step in (0, 4, 9, 10, 55, 100)]
    assert [round(rate, 12) for rate in rates] == [0.2, 1.0, 2.0, 2.0, 2.0 * (0.05 + 0.95 * 0.5), 0.1]


def test_matrices_decay_and_vectors_do_not():
    model = nn.Linear(3, 2)
    found = {tuple(p.shape): group["weight_decay"]
             for group in training._optimizer(model, recipe()).param_groups for p in group["params"]}  # fmt: skip
    assert found == {(2, 3): 0.25, (2,): 0.0}


def test_copies_of_a_generated_source_are_drawn_afresh(monkeypatch):
    monkeypatch.setattr("coevolve.pretrain.corpus.GENERATED_DOCUMENTS", 50)
    once, twice = (causal.texts(recipe(sources=[{"name": "opinions", "repeat": count}])) for count in (1, 2))
    assert twice[: len(once)] == once
    assert len(twice) == 2 * len(once)
    assert twice[len(once) :] != once
    assert causal.texts(recipe(seed=1)) != once


def test_what_a_generated_source_holds_out_is_the_split_for_tests():
    source = corpus._split(lambda rng, count, split: [split, str(count)])
    assert (source(Random(0), False), source(Random(0), True)) == (["pretrain", "10000"], ["test", "200"])


def test_a_perplexity_is_a_mean_over_the_tokens_that_are_guessed(monkeypatch):
    """In pieces of three tokens each first one is not guessed. Who takes seven tokens for equally likely has seven."""

    class Even(nn.Module):
        def forward(self, input_ids):
            return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 7))

    monkeypatch.setattr(causal, "documents", lambda name, rng, held_out: ["one", "two"] if held_out else [])
    monkeypatch.setattr(causal, "encode", lambda tokenizer, found: [[1, 2, 3, 4, 5] for _ in found])
    assert causal.perplexities(Even(), None, ["x"], 3) == {"x": pytest.approx(7.0)}


def test_a_gradient_is_at_most_one_long():
    model = nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    plain = torch.optim.SGD(model.parameters(), lr=9.0)  # the rate is that of the step
    training._update(model, plain, lambda step: 100.0 * model.weight.sum(), 0, 0.5, recipe())
    assert math.isclose(float((model.weight.detach() - before).norm()), 0.5, rel_tol=1e-6)


def classifier_recipe():
    return ClassifierRecipe(**(RECIPE | {"kind": "classifier", "source": "opinions", "batch_size": 16}))


def tokens(texts, **how):
    return {"input_ids": [[7] * 200 for _ in texts]}


def test_a_classifier_reads_crops_at_every_other_step(monkeypatch):
    read = []

    def logits(model, tokenizer, pieces):
        read.append([len(piece) for piece in pieces])
        return torch.zeros(len(pieces), 2, requires_grad=True)

    monkeypatch.setattr(classifier, "_logits", logits)
    monkeypatch.setattr(classifier, "labelled", lambda name, held_out: [("word " * 200, 1)])
    loss = classifier.objective(nn.Linear(1, 1), tokens, classifier_recipe())
    for step in range(4):
        loss(step)
    assert read[0] == read[2] == [31] * 16
    assert all(8 <= length <= 40 for step in (1, 3) for length in read[step])
    assert read[1] != read[3]


def test_a_classifier_is_judged_by_what_it_has_not_read(monkeypatch):
    kept = [("good", 1), ("bad", 0), ("bad", 0), ("bad", 0)]
    monkeypatch.setattr(classifier, "labelled", lambda name, held_out: kept if held_out else [("bad", 0)])
    monkeypatch.setattr(
        classifier, "_logits", lambda model, tokenizer, pieces: torch.tensor([[1.0, 0.0]] * len(pieces))
    )
    found = classifier.accuracies(nn.Linear(1, 1), tokens, classifier_recipe())
    assert found == {"accuracy": 0.75, "accuracy_of_crops": 0.75}
