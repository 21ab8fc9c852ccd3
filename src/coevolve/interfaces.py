"""The doors between rooms, as protocols, and nothing else: what tasks, engines and backends are to those who use them.

Letters: B rows, U distinct prompts, N the action tokens of all rows in one line, W hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from coevolve.late import Tensor, torch
from coevolve.types import Batch, Case, PolicyName, Problem, Prompt, Role, Sampling, Say, Turn

if TYPE_CHECKING:
    from coevolve.compute.draw import Draw
    from coevolve.models.adapters import Adapters


class Task(Protocol):
    """Problems, what each role is told, and what turns are worth.

    A task may also have ``feedback(p, turns) -> list[str]``, one text per turn for plays of several turns;
    ``parts(cases) -> list[dict[str, float]]``, named components of each case, which are logged and never trained on;
    ``solo = False`` where one policy alone cannot be paid, so that an evaluation does not try; and ``asks``, the
    columns that its prompts are made of, with ``feedback_asks``, those that the feedback needs besides, for a team
    that is played after training (``coevolve.teams.team``).
    """

    train: Sequence[Problem]
    test: Sequence[Problem]

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt: ...

    def reward(self, cases: Sequence[Case]) -> list[list[float]]: ...


class Engine(Protocol):
    """Samples all turns of one sweep, for all policies at once so that devices can work side by side."""

    def encode(self, policy: PolicyName, prompt: Prompt) -> Sequence[int]: ...

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]: ...


LMHead = Callable[[Tensor], Tensor]
"""hidden_NW -> logits_NV in float32, without gradient."""


class KVCache(Protocol):
    """The keys and values of a rollout. hidden_UW: the last hidden state of every prompt.

    dead_share: finished rows leave once they are one in so many.
    """

    hidden_UW: Tensor
    dead_share: int

    def step(self, ids_B: Tensor, position_B: Tensor) -> Tensor:
        """Feed one token a row; the last hidden states, [B, W]."""
        ...

    def keep(self, order_B: Tensor, holes: Tensor) -> None:
        """Row b becomes what row ``order_B[b]`` was, and rows behind leave; they differ at ``holes`` only."""
        ...


class Sampler(Protocol):
    """What rollouts compute with while the weights do not change."""

    def session(
        self, prompts: Sequence[Sequence[int]], speaker_U: Sequence[int], prompt_B: Sequence[int], steps: int
    ) -> KVCache:
        """Feed prompts for rows that continue them by at most ``steps`` tokens.

        speaker_U: whose each prompt is, as a number of the sampler's adapters, non-decreasing. prompt_B: each row's
        prompt.
        """
        ...

    def logits(self, hidden_BW: Tensor) -> Tensor:
        """[B, V] in float32."""
        ...

    def draw(self, logits_BV: Tensor, uniform_B: Tensor, sampling: Sampling, seen_BV: Tensor | None) -> Draw:
        """One token a row (``compute.draw``)."""
        ...


class Backend(Protocol):
    """What computes for one model in memory (``models.weights.Base``), chosen once when that is loaded.

    name: as recipes say it. about: what it is here, in a line. uses_prefix_tree: whether what rows have in common at
    their beginning is computed once, so that micro-batches count it once.
    """

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def uses_prefix_tree(self) -> bool: ...

    def sampler(self, adapters: Adapters, dtype: torch.dtype) -> AbstractContextManager[Sampler]:
        """For rows of these adapters; the weights must not change inside."""
        ...

    def hidden(self, batch: Batch) -> Tensor:
        """Last hidden states where each action token is predicted, [N, W], rows in order; differentiable."""
        ...

    def logprobs(self, hidden_NW: Tensor, action_N: Tensor, temperature_N: Tensor) -> tuple[Tensor, Tensor]:
        """log pi of each action token and the entropy of its distribution in nats, [N] each; differentiable."""
        ...

    def lm_head(self, dtype: torch.dtype) -> LMHead:
        """The output layer while its weights do not change; products are of numbers in dtype."""
        ...
