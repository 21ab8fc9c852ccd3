"""A test of how often a model's answers to held-out problems are right, alone and after each kind of reference."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from coevolve.pretrain.sums_answers import flawed, prompt, right
from coevolve.rewards.numbers import is_right
from coevolve.tasks.worlds.sums import WordProblem, problems

ANSWER_TOKENS = 40
_BATCH = 128


def pass_rates(model: Any, tokenizer: PreTrainedTokenizerBase, count: int, seed: int = 0) -> dict[str, float]:
    """Return the shares of right answers, one sampled (temperature 1) to each of ``count`` problems of split "test".

    none: to the bare question; greedy: to the bare question, decoded greedily. right, wrong: after a reference of the
    grammar that is right, or flawed and wrong. own: after the model's own answer under "none"; own_right and own_wrong:
    of these, the problems whose own answer was right or wrong.
    """
    rng = Random(seed)
    torch.manual_seed(seed)
    model.eval()
    found = problems("test", count, rng, distinct=True)
    bare = [prompt(p) for p in found]
    alone = _answer(model, tokenizer, bare)
    heard = {"right": list(map(right, found)), "wrong": [_wrong(rng, p) for p in found], "own": alone}
    solved = {"none": _solved(found, alone), "greedy": _solved(found, _answer(model, tokenizer, bare, greedy=True))}
    for kind, said in heard.items():
        prompts = [prompt(p, text) for p, text in zip(found, said, strict=True)]
        solved[kind] = _solved(found, _answer(model, tokenizer, prompts))
    for name, wanted in (("own_right", True), ("own_wrong", False)):
        solved[name] = [own for own, first in zip(solved["own"], solved["none"], strict=True) if first == wanted]
    return {name: sum(values) / len(values) for name, values in solved.items()}


def _wrong(rng: Random, problem: WordProblem) -> str:
    while True:
        answer = flawed(rng, problem)
        if not _solved([problem], [answer])[0]:
            return answer


def _solved(found: list[WordProblem], said: list[str]) -> list[bool]:
    return [is_right(text, Fraction(p.gold)) for p, text in zip(found, said, strict=True)]


@torch.no_grad()
def _answer(model: Any, tokenizer: PreTrainedTokenizerBase, prompts: list[str], greedy: bool = False) -> list[str]:
    answers: list[str] = []
    for start in range(0, len(prompts), _BATCH):
        fed = tokenizer(prompts[start : start + _BATCH], padding=True, padding_side="left", return_tensors="pt")
        said = model.generate(
            input_ids=fed["input_ids"],
            attention_mask=fed["attention_mask"],
            do_sample=not greedy,
            top_k=0,
            max_new_tokens=ANSWER_TOKENS,
        )
        answers += tokenizer.batch_decode(said[:, fed["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers
