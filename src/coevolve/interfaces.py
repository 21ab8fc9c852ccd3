"""The doors between rooms, as protocols, and nothing else: what tasks, engines, learners and backends are to others.

Letters: B rows, U distinct prompts, N the action tokens of all rows in one line, W hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from coevolve.late import Tensor, torch
from coevolve.models.spec import PolicySpec
from coevolve.types import (
    Asked,
    Batch,
    Case,
    Metrics,
    Objective,
    PolicyName,
    Problem,
    Prompt,
    Role,
    Sampling,
    Say,
    Targets,
    Turn,
)

if TYPE_CHECKING:
    from coevolve.compute.draw import Draw
    from coevolve.models.adapters import Adapters


class Task(Protocol):
    """Problems, what each role is told, and what turns are worth.

    A task may also have ``feedback(p, turns) -> list[str]``, one text per turn for plays of several turns;
    ``referee(p, turns)``, who speaks next and what they are told (``play.Referee``), for the play ``refereed``;
    ``parts(cases) -> list[dict[str, float]]``, named components of each case, which are logged and never trained on;
    ``solo = False`` where one policy alone cannot be paid, so that an evaluation does not try; and ``asks``, the
    columns that its prompts are made of, with ``feedback_asks``, those that the feedback needs besides, for a team
    that is played after training (``coevolve.teams.team``).
    """

    train: Sequence[Problem]
    test: Sequence[Problem]

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt: ...

    def reward(self, cases: Sequence[Case]) -> list[list[float]]: ...


@dataclass(frozen=True)
class Published:
    """One version of a policy's weights, and what an engine has to know to sample it.

    version: the number of the training step that these weights are for. tokenizer: with its chat template. context:
    positions the model has. eos: ids that end a turn. save: writes the weights into a folder that transformers or peft
    loads alone; until the policy's next update. policy: the ``models.policy.Policy`` itself where its weights are in
    this process, else None.
    """

    name: PolicyName
    version: int
    spec: PolicySpec
    tokenizer: Any
    context: int
    eos: frozenset[int]
    save: Callable[[Path], None]
    policy: Any = None


class TurnSource(Protocol):
    """What a play is answered by. It may also have ``context(policy)``, the positions of the policy's model or None, by
    which plays know what still fits (``play.Roles.fits``)."""

    def encode(self, policy: PolicyName, prompt: Asked) -> Sequence[int]:
        """Token ids of a prompt."""
        ...

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        """One turn per say, in the order given, with the version it was sampled at.

        Of all policies at once: they wait for each other, so devices can work side by side.
        """
        ...


def context(engine: TurnSource, policy: PolicyName) -> int | None:
    """Positions of a policy's model, None where the engine does not say (``TurnSource``)."""
    found = getattr(engine, "context", None)
    return None if found is None else found(policy)


class Overlapping(Protocol):
    """``engine.overlapped``, of an engine that can answer a turn while it samples others; an engine may have none.

    ``with engine.overlapped(inbox) as ask``: ``ask(say, then)`` returns at once, and when the turn is there, what calls
    ``then(turn)``, or raises why there is none, is put into the inbox, whose reader calls it.
    """

    def __call__(
        self, inbox: SimpleQueue[Callable[[], None]]
    ) -> AbstractContextManager[Callable[[Say, Callable[[Turn], None]], None]]: ...


class Engine(TurnSource, Protocol):
    """What samples turns. It knows policies by name and published weights, never a learner.

    ``engines.base.BaseEngine`` is all of it but the sampling. One that can answer a turn while it samples others
    (``Overlapping``), and samples weights of its own, may have ``staleness``: 1 has it sample the next step's turns
    while this step is learnt from, by weights that are then one update older than those that learn from them.
    """

    def publish(self, news: Sequence[Published]) -> None:
        """Returns when every later turn of these policies is of these weights."""
        ...

    def rest(self) -> None:
        """Learners work now: memory can be given back until the next call."""
        ...

    def close(self) -> None:
        """End what was started (processes, servers); a later call may start it again."""
        ...


class Learner(Protocol):
    """What a policy is to the trainer: weights that say something about a batch, and learn from it.

    trainable: False if frozen. place: learners of several places work side by side. compute, about: the backend, as
    recipes say it and in a line. A learner may also have ``logps(batch) -> logp_BT``, the log-probabilities of the
    action tokens by its weights of now, on the CPU, for algorithms that ask (``Algorithm.logp_old``, ``follow``).
    """

    name: PolicyName
    spec: PolicySpec
    tokenizer: Any
    trainable: bool

    @property
    def place(self) -> object: ...

    @property
    def compute(self) -> str: ...

    @property
    def about(self) -> str: ...

    def describe(self, batch: Batch) -> Batch:
        """The batch with kl_BT and logp_ref_BT if there is a reference, value_BT if there is a critic."""
        ...

    def update(self, batch: Batch, targets: Targets, objective: Objective, step: int) -> Metrics:
        """Learn from the batch, behind the gate (``learners.gate``)."""
        ...

    def published(self, version: int) -> Published:
        """The weights of now, which are this version from now on."""
        ...

    def save(self, folder: Path) -> None:
        """A folder that transformers or peft loads alone, with whatever else of the weights ``load`` wants."""
        ...

    def training_state(self) -> dict[str, Any]:
        """What a resumed run needs beyond that folder: the optimiser, as whole tensors."""
        ...

    def load(self, folder: Path, training_state: dict[str, Any]) -> None:
        """Continue as the learner that wrote them, bit for bit."""
        ...

    def reset_optimizer(self) -> None:
        """Forget the optimiser's moments and step count."""
        ...

    def close(self) -> None:
        """End its processes, if it has any; a later call starts them again."""
        ...


LMHead = Callable[[Tensor], Tensor]
"""hidden_NW -> logits_NV in float32, without gradient."""


class Reference(NamedTuple):
    """What a policy's distributions are compared with: the last hidden states of another one where each action token is
    predicted, [N, W], and how its logits are made of them."""

    hidden_NW: Tensor
    logits: LMHead


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

    def logprobs(
        self, hidden_NW: Tensor, action_N: Tensor, temperature_N: Tensor, reference: Reference | None = None
    ) -> tuple[Tensor, ...]:
        """log pi of each action token and the entropy of its distribution in nats; with a reference also KL(pi ||
        reference) over the vocabulary, at the same temperature. [N] each; differentiable."""
        ...

    def lm_head(self, dtype: torch.dtype) -> LMHead:
        """The output layer while its weights do not change; products are of numbers in dtype."""
        ...
