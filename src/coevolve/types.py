"""The data types of Coevolve, from a problem to an update, and the signatures of its functions.

    problems -> play -> Episode of Turns -> credit -> Rows -> collate -> Batch -> describe -> Lesson -> advantage
             -> Targets -> loss -> one update

Letters in tensor names: B turns (rows), S positions of a whole row (prompt, then action, then padding), T action tokens
(the longest action of the batch), V vocabulary. ``logp_BT[b, t]`` belongs to the t-th token that turn b *sampled*.

A worked example: one episode of the chain ``(pioneer, observer)``, prompt "The film" = ``[5, 6]``, end of sequence = 0.

    pioneer hears nothing:    prompt_ids [5, 6]              samples [7, 0]     finished (it sampled the 0)
    observer hears "bad":     prompt_ids [9, 5, 6, 7, 5, 6]  samples [8, 3, 4]  not finished (cut at three tokens)

If one policy had played both roles, its Batch (B=2, S=9, T=3) would be

    ids_BS      5 6 7 0 . . . . .        start_B  2     mask_BT  1 1 0     action_BT  7 0 .
                9 5 6 7 5 6 8 3 4                 6              1 1 1                8 3 4

A sampled end of sequence is trained on; padding (shown as a dot) never is. Rows end where their lengths say, no code
tests for a padding *id*, so a prompt may contain any id.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, NamedTuple, TypedDict

from coevolve.late import Tensor, torch
from coevolve.settings import Count, CountFromZero, NotNegative, Positive, PositiveFraction, check_fields

Role = str
PolicyName = str
Metrics = dict[str, float]
State = Mapping[str, Any]
"""The state of an algorithm between steps: KL weights, running moments, moving baselines. Plain JSON data, so that a
checkpoint can hold it; never changed in place."""


class Message(TypedDict):
    """One chat message, as chat templates take it."""

    role: str
    content: str


class Instruction(str):
    """A prompt for any model: a user message where the policy uses its chat template, plain text elsewhere."""

    __slots__ = ()


class ToolResult(str):
    """The result of a tool call, which becomes a message of the role ``tool`` in the prompt. tool: the name of the
    function. failed: the function does not exist or raised, and the text is the reason."""

    tool = ""
    failed = False

    @classmethod
    def of(cls, tool: str, text: str, failed: bool = False) -> ToolResult:
        found = cls(whole_characters(text))
        found.tool, found.failed = whole_characters(tool), failed
        return found


def whole_characters(text: str) -> str:
    """Return the text with "?" in place of lone surrogates, which JSON can escape but tokenizers reject."""
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of a task's data. ``id`` is unique within its split; ``data`` holds the row's columns."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)


_COLDEST = 1e-6
"""The lowest temperature above 0. Below it sampling is as good as greedy, and logits / temperature may overflow."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of all turns. The defaults sample from the model's own distribution.

    max_new_tokens: most tokens of a turn, the end of sequence included; a pair (low, high) draws one such limit per
    step, both ends included (CORY, section 4). temperature: 0 is greedy. top_k: 0 is off. top_p: 1.0 is off.
    repetition_penalty: 1.0 is off. Raises ValueError for a number out of range.
    """

    max_new_tokens: Count | tuple[int, Count]
    temperature: NotNegative = 1.0
    top_k: CountFromZero = 0
    top_p: PositiveFraction = 1.0
    repetition_penalty: Positive = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "sampling")
        low, high = self.length_range
        if not 1 <= low <= high:
            raise ValueError(f"sampling.max_new_tokens is {self.max_new_tokens}; want 1 <= low <= high")
        if 0 < self.temperature < _COLDEST:
            raise ValueError(f"sampling.temperature is {self.temperature:g}; want 0 (greedy) or at least {_COLDEST:g}")

    @property
    def length_range(self) -> tuple[int, int]:
        tokens = self.max_new_tokens
        return (tokens, tokens) if isinstance(tokens, int) else (tokens[0], tokens[1])

    def at_length(self, tokens: int) -> Sampling:
        """Return a copy whose ``max_new_tokens`` is this one number."""
        return dataclasses.replace(self, max_new_tokens=tokens)

    @property
    def truncated(self) -> bool:
        """Whether tokens are drawn from another distribution than the log-probabilities describe."""
        return self.top_k > 0 or self.top_p < 1 or self.repetition_penalty != 1.0


@dataclass(slots=True, weakref_slot=True)
class Turn:
    """One completion by one role: the unit of training, with exactly the token ids of its prompt and those it sampled.

    logps[t] is the log-probability of action_ids[t] under the distribution it was drawn from (temperature included,
    truncation not). ``text`` is the decoded action without special tokens. ``finished``: the turn ended by itself, so
    action_ids[-1] is an end of sequence. ``round`` counts the turns of this role in this episode from 0. ``reward`` is
    the task's reward, None until the turn is scored; the mean where the turn is part of several joints. ``temperature``
    is that of logps (1 when greedy). ``excess`` is what truncated sampling (top-k, top-p, repetition penalty) added to
    the log-probabilities, in nats. ``peers`` is the key of the group that the turn is compared in. ``weight`` is how
    much the turn counts in its episode: 1 (times ``best_of``'s weights), or less where a play sampled several
    continuations of one state (1 / their number, along the whole path), so that deep levels of a tree do not outweigh
    its root. ``heard``: the turns and texts that the play showed the role. ``version``: that of the weights which
    sampled the turn. ``asked``: the number of turns in the episode when this one was asked for; its prompt may tell of
    these and of no others.
    """

    role: Role
    policy: PolicyName
    problem: Problem
    member: int
    round: int
    prompt_ids: Sequence[int]
    action_ids: Sequence[int]
    logps: Sequence[float]
    text: str
    finished: bool
    temperature: float = 1.0
    excess: float = 0.0
    reward: float | None = None
    peers: tuple[Any, ...] = ()
    weight: float = 1.0
    heard: tuple[Turn | str, ...] = field(default=(), repr=False)
    version: int = 0
    asked: int = 0


@dataclass(frozen=True, slots=True)
class Joint:
    """One joint action: turns that the task rewarded together, their rewards, and the joint that they continue.

    after: the position in ``Episode.joints`` of the joint that this one continues, None for a first one. answered:
    whether the return of that joint includes the return of this one.
    """

    turns: tuple[Turn, ...]
    rewards: tuple[float, ...]
    after: int | None = None
    answered: bool = True

    def by_role(self) -> dict[Role, float]:
        """Return each role's reward, the mean over its turns: each of them was paid for the whole joint."""
        paid: dict[Role, list[float]] = {}
        for turn, reward in zip(self.turns, self.rewards, strict=True):
            paid.setdefault(turn.role, []).append(reward)
        return {role: fmean(rewards) for role, rewards in paid.items()}


@dataclass(slots=True)
class Episode:
    """One member's interaction on one problem: its turns and joints, in the order they were sampled and scored.

    parts: the task's named components of the episode's reward, once ``measure.note_parts`` has asked for them.
    """

    problem: Problem
    member: int
    turns: list[Turn] = field(default_factory=list)
    joints: list[Joint] = field(default_factory=list)
    parts: Metrics = field(default_factory=dict)

    def depths(self) -> list[int]:
        """Return the depth of each joint: how many joints it continues, directly or through others."""
        found: list[int] = []
        for joint in self.joints:
            found.append(0 if joint.after is None else found[joint.after] + 1)
        return found

    def first_joints(self) -> dict[int, int]:
        """Return the id of a turn -> the position of the first joint that it is part of."""
        found: dict[int, int] = {}
        for number, joint in enumerate(self.joints):
            for turn in joint.turns:
                found.setdefault(id(turn), number)
        return found

    def history(self, last: int | None) -> tuple[tuple[Turn, ...], ...]:
        """Return the turns of the joint at this position and of all joints that it continues, the earliest first."""
        found: list[tuple[Turn, ...]] = []
        while last is not None:
            found.append(self.joints[last].turns)
            last = self.joints[last].after
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class Say:
    """A request for one turn: a prompt as token ids. ``key`` (64 bit) alone determines the random numbers.

    on_token: a callback that is given each token id as it is sampled, by engines that sample token by token in this
    process (the local one); other engines never call it. The sampled tokens do not depend on it.
    """

    role: Role
    policy: PolicyName
    problem: Problem
    member: int
    round: int
    prompt_ids: Sequence[int]
    sampling: Sampling
    key: int
    on_token: Callable[[int], None] | None = field(default=None, compare=False, repr=False)

    @property
    def where(self) -> str:
        """Whose turn it is, for errors."""
        return f"role {self.role!r}, policy {self.policy!r}, problem {self.problem.id!r}"

    def answered(
        self,
        action_ids: Sequence[int],
        logps: Sequence[float],
        text: str,
        finished: bool,
        excess: float = 0.0,
        version: int = 0,
    ) -> Turn:
        """Return the turn that answers this request."""
        return Turn(
            role=self.role,
            policy=self.policy,
            problem=self.problem,
            member=self.member,
            round=self.round,
            prompt_ids=self.prompt_ids,
            action_ids=action_ids,
            logps=logps,
            text=text,
            finished=finished,
            excess=excess,
            temperature=self.sampling.temperature or 1.0,
            version=version,
        )


@dataclass(frozen=True, slots=True)
class Case:
    """One input of a task's reward: turns to score on one problem, and the turns of the joints before them."""

    problem: Problem
    turns: tuple[Turn, ...]
    history: tuple[tuple[Turn, ...], ...] = ()

    def said(self) -> dict[Role, str]:
        """Return the text of each role, that of its last turn if it has several."""
        return {turn.role: turn.text for turn in self.turns}


@dataclass(frozen=True, slots=True)
class Row:
    """A turn to learn from, with its credit and its place in the step.

    episode: the position of its episode among those of the step. joint: the position of its joint (the first one, of
    several) among all joints of the step; -1 if it is part of none. extra: the algorithm added this row (``Rows``), so
    it was not sampled from this prompt. paid: the sum of the absolute rewards of the episode, by which a credit that is
    only a rounding error can be told.
    """

    turn: Turn
    credit: float
    episode: int
    joint: int = -1
    extra: bool = False
    paid: float = 0.0


@dataclass(frozen=True)
class Batch:
    """The turns of one policy as padded tensors. See the module's example.

    ids_BS long; start_B long, prompt length; length_B long, prompt + action; action_BT long (0 where padded);
    mask_BT bool; logp_BT float, as sampled; credit_B float; reward_B float, the turn's own reward (NaN: not scored);
    peers_B long, turns of equal numbers are compared with each other; temperature_B float, of sampling (1 for greedy);
    weight_B float, ``Turn.weight`` times turns per episode, so that the mean of weight_B * x_B over rows is the mean
    over episodes of the sum over an episode's turns of weight * x; role_B long, an index into ``roles`` (those of the
    whole step); episode_B and joint_B long, extra_B bool, paid_B float, as in ``Row``; version_B long, of the weights
    that sampled the row (None: unknown, and not compared).
    ``Learner.describe`` adds, where an algorithm needs them: kl_BT, KL(policy || reference) over the whole vocabulary;
    logp_ref_BT; value_BT, the critic's estimate *before* each token. All zero outside the mask. logp_old_BT is
    ``Learner.logps`` before the update, where ``Algorithm.logp_old`` asks for it.
    """

    ids_BS: Tensor
    start_B: Tensor
    length_B: Tensor
    action_BT: Tensor
    mask_BT: Tensor
    logp_BT: Tensor
    credit_B: Tensor
    reward_B: Tensor
    peers_B: Tensor
    temperature_B: Tensor
    weight_B: Tensor
    role_B: Tensor
    episode_B: Tensor
    joint_B: Tensor
    extra_B: Tensor
    roles: tuple[Role, ...]
    paid_B: Tensor | None = None
    version_B: Tensor | None = None
    kl_BT: Tensor | None = None
    logp_ref_BT: Tensor | None = None
    value_BT: Tensor | None = None
    logp_old_BT: Tensor | None = None

    def __len__(self) -> int:
        return int(self.ids_BS.shape[0])

    def select(self, rows_B: Tensor) -> Batch:
        """Return the rows of these numbers, with S and T cut to the longest of them."""
        steps = int((self.length_B - self.start_B)[rows_B].max())
        width = int(self.length_B[rows_B].max())
        cut = {"S": width, "T": steps}

        def take(name: str, value: Tensor) -> Tensor:
            rows = value[rows_B]
            return rows[:, : cut[name[-1]]] if name[-1] in cut else rows

        return self.replace(**{name: take(name, value) for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that are tensors, by name."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}

    def replace(self, **changes: Any) -> Batch:
        return dataclasses.replace(self, **changes)

    def to(self, device: torch.device | str) -> Batch:
        return self.replace(**{name: _placed(value, device) for name, value in self.tensors().items()})


@dataclass(frozen=True)
class Lesson:
    """The input of an advantage: all episodes of a step, and the described batch of every policy that learns."""

    episodes: Sequence[Episode]
    batches: Mapping[PolicyName, Batch]


@dataclass(frozen=True)
class Targets:
    """The targets of one policy's loss: adv_BT for the policy, return_BT for the critic (None without one).

    eta: weight of the KL penalty, in the reward or in the loss. columns: further tensors that the loss needs, by names
    that end in _B or _BT. metrics: numbers about the batch that are logged.
    """

    adv_BT: Tensor
    return_BT: Tensor | None = None
    eta: float = 0.0
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    def select(self, rows_B: Tensor, steps: int) -> Targets:
        """Return the rows of these numbers, cut to ``steps`` action tokens (the T of the matching ``Batch.select``)."""
        return self._mapped(lambda x: x[rows_B] if x.ndim == 1 else x[rows_B, :steps])

    def to(self, device: torch.device | str) -> Targets:
        return self._mapped(lambda x: _placed(x, device))

    def _mapped(self, of: Callable[[Tensor], Tensor]) -> Targets:
        returns = None if self.return_BT is None else of(self.return_BT)
        columns = {name: of(x) for name, x in self.columns.items()}
        return dataclasses.replace(self, adv_BT=of(self.adv_BT), return_BT=returns, columns=columns)


def _placed(x: Tensor, device: torch.device | str) -> Tensor:
    """Return the tensor on the device; to a GPU it is copied asynchronously, from pinned memory."""
    return (x.pin_memory() if str(device).startswith("cuda") else x).to(device, non_blocking=True)


class Outputs(NamedTuple):
    """Differentiable outputs of one forward pass: logp_BT of the action tokens; value_BT, where there is a critic;
    entropy_BT, of the distribution each token was drawn from, in nats; kl_BT, KL(policy || reference) over the whole
    vocabulary, where ``Objective.kl`` asks for it."""

    logp_BT: Tensor
    value_BT: Tensor | None = None
    entropy_BT: Tensor | None = None
    kl_BT: Tensor | None = None


Play = Callable[[Problem, Any], Coroutine[Any, Any, None]]
"""(problem, team) -> a coroutine, the interaction of one episode; team is a ``play.Roles``."""
Cast = Callable[[int], Mapping[Role, PolicyName]]
Reward = Callable[[Sequence[Case]], list[list[float]]]
"""cases -> the task's reward for each of them, one number per turn."""
Credit = Callable[[Sequence[Episode], Reward], list[list[float]]]
"""(all episodes of a step, the task's reward, for cases that were not played) -> for each episode, one number per
turn, its credit."""
Rows = Callable[[Sequence[Episode], Sequence[Row]], Sequence[Row]]
"""(all episodes of a step, a row for each of their turns) -> additional rows to learn from."""
Advantage = Callable[[Lesson, State], tuple[Mapping[PolicyName, Targets], State]]
"""(the lesson of a step, state) -> (targets of every policy that is to be updated, the next state)."""
Follow = Callable[
    [Lesson, PolicyName, Tensor, Mapping[PolicyName, Targets], State], tuple[Mapping[PolicyName, Targets], State]
]
"""(lesson, the policy just updated, its log-probabilities after the update, [B, T], all targets, state) -> (the targets
of the updates that follow, the next state)."""
LossAggregation = Callable[[Batch], Tensor]
"""(mini-)batch -> weight_BT, the weight of each token; the loss of a batch is the weighted *sum* over its tokens."""
Loss = Callable[[Outputs, Batch, Targets, Tensor], tuple[Tensor, Mapping[str, Tensor]]]
"""(outputs, batch, targets, weight_BT) -> (scalar, detached metrics); both add up over micro-batches.

Metrics named ``loss/...`` are terms of the scalar, those that end in ``/max`` maxima; others are weighted sums over
tokens, reported as weighted means. The learner's own names (loss, grad_norm, entropy, drift, lr, updates) are refused.
"""


Prompt = str | Sequence[Message] | Sequence[Turn | str]
"""A role's prompt: text; chat messages; or its own last Turn followed by new text, spliced as exact token ids."""


@dataclass(frozen=True, slots=True)
class WithTools:
    """A prompt of a role that may call functions. tools: their JSON schemas, for the chat template."""

    prompt: Prompt
    tools: tuple[Mapping[str, Any], ...]


Asked = Prompt | WithTools
"""The input of ``TurnSource.encode``."""


@dataclass(frozen=True)
class Objective:
    """The loss of an update, and its optimiser steps.

    epochs: passes over each batch. minibatch: rows per optimiser step (None: all). together: ``peers`` never splits
    turns that are compared with each other, for losses of several rows; ``row`` splits anywhere. kl: the loss
    differentiates ``Outputs.kl_BT``, for which every pass runs the reference, too. staleness: by how many updates turns
    may be older than the weights that learn from them, 0 or 1 (``Engine``'s). Policies that learn at the same time call
    the loss from several threads.
    """

    loss: Loss
    loss_aggregation: LossAggregation
    epochs: int = 1
    minibatch: int | None = None
    together: Literal["row", "peers"] = "row"
    kl: bool = False
    staleness: int = 0


@dataclass(frozen=True)
class Algorithm:
    """A training algorithm as a value, which the trainer runs without knowing its name.

    credit: the rule that gives each turn its credit. advantage: (lesson, state) -> targets and the next state.
    objective: the loss of an update and its steps. start: the state at step 0. reference: whether a frozen copy of the
    start policy is needed (KL). critic: whether a value head is needed, on every policy or on those of these names.
    logp_old: whether batches hold the learner's own log-probabilities, needed where the sampler's differ and a batch is
    used more than once. rows: adds rows to learn from. follow: if given, policies are updated one after the other, in
    an order drawn for each step, and ``follow`` adapts the targets after each update. resample: how many times a step
    plays other problems in place of those without a signal (``dynamic_sampling``). caution: a warning for users, given
    once. kept: returns the part of the state that survives a ``reset`` of the trainer, as weights and value heads do.
    warmup: number of first steps in which the advantage may leave policies out without a warning. A rule that draws
    random numbers takes them from ``noise``.
    """

    credit: Credit
    advantage: Advantage
    objective: Objective
    start: State = field(default_factory=dict)
    reference: bool = False
    critic: bool | tuple[PolicyName, ...] = False
    logp_old: bool = False
    rows: Rows | None = None
    follow: Follow | None = None
    resample: int = 0
    caution: str = ""
    kept: Callable[[State], State] | None = None
    warmup: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The arguments that the algorithm was made with: a checkpoint belongs to one algorithm."""

    def has_critic(self, name: PolicyName) -> bool:
        """Return whether this policy needs a value head."""
        return self.critic if isinstance(self.critic, bool) else name in self.critic
