"""Protocols of the parts that can be replaced: tasks, engines, learners and compute backends.

Letters: B rows, U distinct prompts, N the action tokens of all rows, concatenated, W hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

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
    Say,
    Targets,
    Turn,
)

if TYPE_CHECKING:
    from coevolve.models.adapters import Adapters


class Task(Protocol):
    """A data set with its prompts and its reward: problems, the prompt of each role, and the rewards of turns.

    A task may also have ``feedback(p, turns) -> list[str]``, one text per turn for plays of several turns;
    ``referee(p, turns)``, the roles that speak next and their texts (``play.Referee``), for the play ``refereed``;
    ``parts(cases) -> list[dict[str, float]]``, named components of each case, which are logged and never trained on;
    ``solo = False`` where one policy alone cannot be rewarded, so that an evaluation does not try; and ``asks``, the
    columns that its prompts need, with ``feedback_asks``, those that the feedback needs besides, for a team that is
    used after training (``coevolve.teams.team``).
    """

    train: Sequence[Problem]
    test: Sequence[Problem]

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt: ...

    def reward(self, cases: Sequence[Case]) -> list[list[float]]: ...


Send: TypeAlias = Callable[[Mapping[str, "Tensor"], Callable[["Tensor"], "Tensor"]], Any]
"""(weights, whole) -> what there is to tell: sends full weights, by their names in a checkpoint, to a server. Called in
the process that has them, and picklable, as is what it returns. whole: (weight) -> the same as one tensor, to be called
for one after the other in this order."""


@dataclass(frozen=True)
class Published:
    """One version of a policy's weights, with all that an engine needs to sample from it.

    version: the number of the training step that these weights are for. tokenizer: with its chat template. context:
    the model's context length. eos: ids that end a turn. save: writes the weights into a folder that transformers or
    peft can load; valid until the policy's next update. policy: the ``models.policy.Policy`` itself where its weights
    are in this process, else None. send: (send) calls ``send`` with full weights where they are, and returns what it
    returns; None where a learner cannot.
    """

    name: PolicyName
    version: int
    spec: PolicySpec
    tokenizer: Any
    context: int
    eos: frozenset[int]
    save: Callable[[Path], None]
    policy: Any = None
    send: Callable[[Send], Any] | None = None


class TurnSource(Protocol):
    """A source of turns for plays. It may also have ``context(policy)``, the context length of the policy's model or
    None, for plays that ask whether a prompt still fits (``play.Roles.fits``)."""

    def encode(self, policy: PolicyName, prompt: Asked) -> Sequence[int]:
        """Return the token ids of a prompt."""
        ...

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        """Return one turn per request, in the order given, each with the version of the weights that sampled it.

        All policies are sampled in one call, so that their devices can work at the same time.
        """
        ...


def context(engine: TurnSource, policy: PolicyName) -> int | None:
    """Return the context length of a policy's model, None where the engine does not say (``TurnSource``)."""
    found = getattr(engine, "context", None)
    return None if found is None else found(policy)


class Overlapping(Protocol):
    """The type of ``engine.overlapped``, an optional method of engines that return turns one by one (servers).

    ``with engine.overlapped(inbox) as ask``: ``ask(say, then)`` returns at once. When the turn is done, a callable that
    calls ``then(turn)``, or raises the error of the request, is put into the inbox, and its reader calls it.
    """

    def __call__(
        self, inbox: SimpleQueue[Callable[[], None]]
    ) -> AbstractContextManager[Callable[[Say, Callable[[Turn], None]], None]]: ...


class Engine(TurnSource, Protocol):
    """An inference engine, which samples turns. It knows policies by name and published weights, never a learner.

    ``engines.base.BaseEngine`` implements all but the sampling. An engine with ``overlapped`` (``Overlapping``) that
    has its own copy of the weights may have ``staleness``: at 1 it samples the next step's turns during the update of
    this step, with weights that are then one update older than those that learn from them.
    """

    def publish(self, news: Sequence[Published]) -> None:
        """Load these weights. Returns once all later turns of these policies will be sampled with them."""
        ...

    def rest(self) -> None:
        """Free memory if possible: the learners work now, and the engine is idle until its next call."""
        ...

    def close(self) -> None:
        """End the processes and servers that the engine started; a later call may start them again."""
        ...


class Learner(Protocol):
    """A policy as the trainer sees it: weights that evaluate a batch and learn from it.

    trainable: False if frozen. place: learners whose places differ work at the same time (a device; for worker
    processes, the policy's name). compute: the name of the backend as in recipes; about: one line about it. A learner
    may also have ``logps(batch) -> logp_BT``, the log-probabilities of the action tokens under its current weights, on
    the CPU, for algorithms that need them (``Algorithm.logp_old``, ``follow``).
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
        """Return the batch with kl_BT and logp_ref_BT if there is a reference, value_BT if there is a critic."""
        ...

    def update(self, batch: Batch, targets: Targets, objective: Objective, step: int) -> Metrics:
        """Update the weights on the batch, after the checks of ``learners.gate``; returns metrics."""
        ...

    def published(self, version: int) -> Published:
        """Return the current weights under this version number."""
        ...

    def save(self, folder: Path) -> None:
        """Write a folder that transformers or peft can load, with any further weights that ``load`` needs."""
        ...

    def training_state(self) -> dict[str, Any]:
        """Return what a resumed run needs besides that folder: the optimiser state, as unsharded tensors."""
        ...

    def load(self, folder: Path, training_state: dict[str, Any]) -> None:
        """Restore a saved learner, to continue bit for bit as it would have."""
        ...

    def reset_optimizer(self) -> None:
        """Forget the optimiser's moments and step count."""
        ...

    def close(self) -> None:
        """End the learner's processes, if it has any; a later call starts them again."""
        ...


LMHead = Callable[[Tensor], Tensor]
"""hidden_NW -> logits_NV in float32, without gradient."""


class Reference(NamedTuple):
    """The reference of a KL: its last hidden states at the positions that predict the action tokens, [N, W], and the LM
    head that makes logits of them."""

    hidden_NW: Tensor
    logits: LMHead


class KVCache(Protocol):
    """The KV cache of a rollout. hidden_UW: the last hidden state of every prompt.

    dead_share: finished rows are removed once they are 1 / dead_share of all rows, the others rounded up to fours.
    """

    hidden_UW: Tensor
    dead_share: int

    def step(self, ids_B: Tensor, position_B: Tensor) -> Tensor:
        """Feed one token per row; returns the last hidden states, [B, W]."""
        ...

    def keep(self, order_B: Tensor, holes: Tensor) -> None:
        """Move row ``order_B[b]`` to row b and drop the rows after the last b; only rows ``holes`` change."""
        ...


class Sampler(NamedTuple):
    """The computations of a rollout, during which the weights must not change.

    session: (prompts, speaker_U, prompt_B, steps) -> the KV cache of rows that continue these prompts (prefill) by at
    most ``steps`` tokens. speaker_U: the number of each prompt's adapter among those of the sampler, non-decreasing.
    prompt_B: the number of each row's prompt. logits: the LM head.
    """

    session: Callable[[Sequence[Sequence[int]], Sequence[int], Sequence[int], int], KVCache]
    logits: LMHead


class Backend(Protocol):
    """The compute backend of one model in memory (``models.weights.Base``), chosen when the model is loaded.

    name: as in recipes. about: one line about it on this machine. uses_prefix_tree: whether prefixes that rows share
    are computed once, so that micro-batches count their tokens once.
    """

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def uses_prefix_tree(self) -> bool: ...

    def sampler(self, adapters: Adapters, dtype: torch.dtype) -> Sampler:
        """Return a sampler for rows of these adapters, for as long as the weights do not change. The caller switches on
        the autocast by which modules compute in dtype."""
        ...

    def hidden(self, batch: Batch) -> Tensor:
        """Return the last hidden states that predict the action tokens, [N, W], rows in order; differentiable."""
        ...

    def logprobs(
        self, hidden_NW: Tensor, action_N: Tensor, temperature_N: Tensor, reference: Reference | None = None
    ) -> tuple[Tensor, ...]:
        """Return log pi of each action token and the entropy of its distribution in nats; with a reference also KL(pi
        || reference) over the vocabulary, at the same temperature. [N] each; differentiable."""
        ...

    def lm_head(self, dtype: torch.dtype) -> LMHead:
        """Return the LM head, for as long as its weights do not change; it multiplies in dtype."""
        ...
