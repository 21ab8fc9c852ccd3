"""Batched sampling on this machine: every turn a sweep waits for, policy by policy, devices side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from coevolve.policies import encode as encoding
from coevolve.policies.decode import Spoken, decode
from coevolve.policies.linear import packed
from coevolve.policies.policy import LocalPolicy
from coevolve.policies.spec import DTYPES
from coevolve.policies.weights import head, trunk
from coevolve.types import PolicyName, Prompt, Say, Turn

_PADDING = 64
"""Prompts this much longer than 1.5 times the shortest of a chunk go to the next chunk."""


class LocalEngine:
    """Samples turns from policies in this process.

    max_tokens: positions (prompt padding and new tokens included) decoded at a time; it bounds the cache's memory.
    Raises ValueError for a policy that cannot speak through a chat template as its spec wants.
    """

    def __init__(self, policies: Mapping[PolicyName, LocalPolicy], *, max_tokens: int = 1 << 16) -> None:
        self.policies, self.max_tokens = policies, max_tokens
        for name, policy in policies.items():
            encoding.check_chat(policy.tokenizer, policy.spec.chat, name)

    def encode(self, policy: PolicyName, prompt: Prompt) -> Sequence[int]:
        """Token ids of a prompt (see ``policies.encode``)."""
        speaker = self.policies[policy]
        return encoding.encode(speaker.tokenizer, prompt, policy, speaker.spec.chat)

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        """One turn per say, in the order given.

        Raises ValueError for a prompt with no room left in the context, and for weights that have diverged.
        """
        for name, asked in says.items():
            for say in asked:
                _check_room(say, self.policies[name])
        by_device: dict[torch.device, list[PolicyName]] = {}
        for name in says:
            by_device.setdefault(self.policies[name].device, []).append(name)

        def on_device(names: list[PolicyName]) -> dict[PolicyName, list[Turn]]:
            return {name: self._answer(name, says[name]) for name in names}

        if len(by_device) <= 1:
            answers = [on_device(names) for names in by_device.values()]
        else:
            with ThreadPoolExecutor(len(by_device)) as threads:
                answers = list(threads.map(on_device, by_device.values()))
        found = {name: turns for answer in answers for name, turns in answer.items()}
        return {name: found[name] for name in says}

    @torch.inference_mode()
    def _answer(self, name: PolicyName, says: Sequence[Say]) -> list[Turn]:
        policy = self.policies[name]
        found: dict[int, Spoken] = {}
        with (
            policy.active() as causal,
            packed(trunk(causal), DTYPES[policy.spec.dtype]),
            packed(head(causal), torch.float32),
        ):
            for rows in chunks(says, self.max_tokens):
                drawn = decode(causal, [says[row] for row in rows], policy.eos, policy.device)
                found |= zip(rows, drawn, strict=True)
        spoken = [found[i] for i in range(len(says))]
        for say, row in zip(says, spoken, strict=True):
            _check_finite(say, row)
        pairs = [(say.prompt_ids, row.action_ids) for say, row in zip(says, spoken, strict=True)]
        texts = encoding.said(policy.tokenizer, pairs)
        return [
            say.answered(row.action_ids, row.logps, text, row.finished, row.excess)
            for say, row, text in zip(says, spoken, texts, strict=True)
        ]


def chunks(says: Sequence[Say], max_tokens: int) -> list[list[int]]:
    """Numbers of says to decode together: one Sampling, prompts of similar length, at most max_tokens positions."""
    groups: list[list[int]] = []
    order = sorted(range(len(says)), key=lambda i: (repr(says[i].sampling), len(says[i].prompt_ids)))
    for i in order:
        if groups:
            shortest = says[groups[-1][0]]
            width = len(says[i].prompt_ids) + says[i].sampling.length_range[1]
            if (
                shortest.sampling == says[i].sampling
                and (len(groups[-1]) + 1) * width <= max_tokens
                and len(says[i].prompt_ids) <= 1.5 * len(shortest.prompt_ids) + _PADDING
            ):
                groups[-1].append(i)
                continue
        groups.append([i])
    return groups


def _check_room(say: Say, policy: LocalPolicy) -> None:
    prompt, new = len(say.prompt_ids), say.sampling.length_range[1]
    if prompt + new > policy.context:
        raise ValueError(
            f"role {say.role!r}, policy {say.policy!r}, problem {say.problem.id!r}: a prompt of {prompt} tokens and "
            f"{new} new ones exceed the model's context of {policy.context}; shorten the task's prompts, lower "
            "sampling.max_new_tokens, or use a model with a longer context"
        )


def _check_finite(say: Say, row: Spoken) -> None:
    if not math.isfinite(sum(row.logps)):
        raise ValueError(
            f"role {say.role!r}, policy {say.policy!r}, problem {say.problem.id!r}: the model's probabilities are not "
            "finite; its weights have diverged: go back to a checkpoint and lower the learning rate"
        )
