"""What the policy tests share: short ways to build says and random ragged batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from coevolve import noise
from coevolve.collate import collate, pad
from coevolve.compute.torch_backend import TorchBackend
from coevolve.learners.local import LocalLearner
from coevolve.types import Batch, Objective, Outputs, Problem, Row, Sampling, Say, Targets, Turn

Build = Callable[..., LocalLearner]
EOS = 1
TOKENS = 60
"""Ids below this are in the micro models' vocabulary; 0 is padding, 1 the end of sequence."""


def handed_over(policy: LocalLearner, update: Callable[[], object]) -> dict[torch.Tensor, torch.Tensor]:
    """Weight -> the gradient that an update hands to the optimiser, of the weights that have one."""
    caught: dict[torch.Tensor, torch.Tensor] = {}

    def catch(*_: Any) -> None:
        caught.update({p: p.grad.clone() for p in policy.parameters if p.grad is not None})

    handle = policy.optimizer.register_step_pre_hook(catch)
    update()
    handle.remove()
    return caught


def make_says(prompts: Sequence[list[int]], sampling: Sampling, policy: str = "a") -> list[Say]:
    """One say per prompt, each with its own key."""
    return [
        Say("role", policy, Problem(f"p{i}"), 0, 0, prompt, sampling, noise.key("test", i))
        for i, prompt in enumerate(prompts)
    ]


def ragged(n: int, seed: int, longest: int = 25) -> list[list[int]]:
    """Prompts of all lengths whose ids include padding and the end of sequence."""
    rng = random.Random(seed)
    return [[rng.randrange(TOKENS) for _ in range(rng.randint(1, longest))] for _ in range(n)]


def plain(policy: LocalLearner, tree: bool) -> LocalLearner:
    """The policy, without prefix trees if so wished: as a model whose attention is of another kind."""
    base = policy.weights.base
    if not tree:
        base.causal.set_attn_implementation("sdpa")
        base.backend = TorchBackend(base, uses_prefix_tree=False)
    assert base.backend.uses_prefix_tree == tree
    return policy


def make_batch(rows: int, seed: int, longest_prompt: int = 9, longest_action: int = 7) -> Batch:
    """Random ids (padding and end of sequence among them), ragged on both sides, some rows at other temperatures."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(TOKENS) for _ in range(rng.randint(1, longest_prompt))] for _ in range(rows)]
    actions = [[rng.randrange(TOKENS) for _ in range(rng.randint(1, longest_action))] for _ in range(rows)]
    return batch_of(prompts, actions, seed)


def make_family(problems: int, seed: int) -> Batch:
    """Turns as they come out of plays: members of a group, their second turns, siblings of a tree, a common
    template."""
    rng = random.Random(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(TOKENS) for _ in range(rng.randint(low, high))]

    template, prompts, actions = tokens(12, 12), [], []
    for _ in range(problems):
        prompt = template + tokens(1, 20)
        for _ in range(3):
            prompts.append(prompt)
            actions.append(tokens(1, 14))
            second = prompt + actions[-1] + tokens(0, 9)
            for _ in range(rng.randint(0, 2)):
                prompts.append(second)
                actions.append(tokens(1, 14))
    return batch_of(prompts, actions, seed)


def batch_of(prompts: list[list[int]], actions: list[list[int]], seed: int) -> Batch:
    """These turns, with random log-probabilities, some of them at other temperatures."""
    rng, rows = random.Random(seed), len(prompts)
    lengths = torch.tensor([len(a) for a in actions])
    action_BT = pad(actions, torch.long)
    mask_BT = torch.arange(action_BT.shape[1]) < lengths[:, None]
    return Batch(
        ids_BS=pad([p + a for p, a in zip(prompts, actions, strict=True)], torch.long),
        start_B=torch.tensor([len(p) for p in prompts]),
        length_B=torch.tensor([len(p) for p in prompts]) + lengths,
        action_BT=action_BT,
        mask_BT=mask_BT,
        logp_BT=-torch.rand(mask_BT.shape, generator=torch.Generator().manual_seed(seed)) * 3 * mask_BT,
        credit_B=torch.zeros(rows),
        reward_B=torch.zeros(rows),
        peers_B=torch.arange(rows),
        temperature_B=torch.tensor([rng.choice([1.0, 1.0, 0.7, 1.6]) for _ in range(rows)]),
        weight_B=torch.ones(rows),
        role_B=torch.zeros(rows, dtype=torch.long),
        episode_B=torch.arange(rows),
        joint_B=torch.arange(rows),
        extra_B=torch.zeros(rows, dtype=torch.bool),
        roles=("role",),
    )


def turns_to_batch(turns: Sequence[Turn]) -> Batch:
    """Turns of one policy, each in an episode of its own."""
    return collate([Row(turn, 0.0, number) for number, turn in enumerate(turns)], turns[0].policy)


def make_targets(batch: Batch, seed: int) -> Targets:
    noise = torch.randn(2, *batch.mask_BT.shape, generator=torch.Generator().manual_seed(seed))
    return Targets(noise[0] * batch.mask_BT, noise[1] * batch.mask_BT)


def weighted_loss(out: Outputs, batch: Batch, targets: Targets, weight_BT: torch.Tensor) -> Any:
    """Policy gradient with a squared critic error: simple, smooth, and it reads everything a loss may read."""
    ratio_BT = torch.exp((out.logp_BT - batch.logp_BT).masked_fill(~batch.mask_BT, 0.0))
    loss = -(ratio_BT * targets.adv_BT * weight_BT).sum()
    if out.value_BT is not None:
        loss = loss + 0.5 * ((out.value_BT - targets.return_BT).square() * weight_BT).sum()
    return loss, {"loss/policy": loss.detach()}


def make_rule(**changes: Any) -> Objective:
    """An objective with a loss of the tests."""
    settings: dict[str, Any] = {
        "loss": weighted_loss,
        "loss_aggregation": lambda batch: batch.mask_BT / batch.mask_BT.sum(),
    }
    return Objective(**(settings | changes))


def shaken(policy: LocalLearner, seed: int = 0) -> LocalLearner:
    """The policy with its weights and value head moved, so that it is not its own reference."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator).to(parameter.device)
    return policy
