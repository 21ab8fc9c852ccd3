"""A test of whether a model reads its reference: scores of its answers as observer, by kind of reference."""

from random import Random
from statistics import correlation, mean, stdev
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from coevolve.rewards.sentiment import lexicon
from coevolve.tasks.continuation import observer_prompt
from coevolve.tasks.worlds.opinions import openings, opinion

RESPONSE_TOKENS = 16
_BATCH = 128


class Measured(NamedTuple):
    """The score of query + continuation in VADER points, over all openings."""

    mean: float
    standard_error: float


class ReferenceTest(NamedTuple):
    """One row for each kind of reference, and the correlations of answers' scores with their references' scores."""

    rows: dict[str, Measured]
    correlation_own: float
    correlation_shuffled: float


def reference_test(model: Any, tokenizer: PreTrainedTokenizerBase, count: int, seed: int = 0) -> ReferenceTest:
    """Sample one continuation of at most 16 tokens for each of `count` test openings and each kind of reference.

    good, bad: sentences of the grammar of grade +3 and -3. own: the model's own answer to the bare query. shuffled: its
    answer to another query. none: the bare query.
    """
    rng = Random(seed)
    torch.manual_seed(seed)
    model.eval()
    found = rng.sample(openings("test"), count)
    queries = [_query(tokenizer, opening, rng) for opening in found]
    heard = {
        kind: [opinion(rng, opening, grade).text[len(query) :] for opening, query in zip(found, queries, strict=True)]
        for kind, grade in (("good", 3), ("bad", -3))
    }
    heard["own"] = _sample(model, tokenizer, queries)
    heard["shuffled"] = heard["own"][1:] + heard["own"][:1]
    scores = {"none": _scores(queries, heard["own"])}
    for kind, references in heard.items():
        prompts = [observer_prompt(q, reference) for q, reference in zip(queries, references, strict=True)]
        scores[kind] = _scores(queries, _sample(model, tokenizer, prompts))
    return ReferenceTest(
        {kind: Measured(mean(values), stdev(values) / count**0.5) for kind, values in scores.items()},
        correlation(_scores(queries, heard["own"]), scores["own"]),
        correlation(_scores(queries, heard["shuffled"]), scores["shuffled"]),
    )


def _query(tokenizer: PreTrainedTokenizerBase, opening: str, rng: Random) -> str:
    """The first 2-8 tokens of an opening, as text."""
    ids = tokenizer(opening, add_special_tokens=False)["input_ids"]
    return str(tokenizer.decode(ids[: rng.randint(2, 8)]))


def _scores(queries: list[str], answers: list[str]) -> list[float]:
    return lexicon([query + answer for query, answer in zip(queries, answers, strict=True)])


@torch.no_grad()
def _sample(model: Any, tokenizer: PreTrainedTokenizerBase, prompts: list[str]) -> list[str]:
    answers: list[str] = []
    for start in range(0, len(prompts), _BATCH):
        fed = tokenizer(prompts[start : start + _BATCH], padding=True, padding_side="left", return_tensors="pt")
        said = model.generate(
            input_ids=fed["input_ids"],
            attention_mask=fed["attention_mask"],
            do_sample=True,
            top_k=0,
            max_new_tokens=RESPONSE_TOKENS,
        )
        answers += tokenizer.batch_decode(said[:, fed["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers
