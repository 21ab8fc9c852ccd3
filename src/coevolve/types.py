"""Every data carrier of Coevolve, before any behaviour.

    problems -> play -> Episode of Turns -> credit -> Rows -> collate -> Batch -> describe -> Lesson -> advantage
             -> Targets -> loss -> one update

Letters in tensor names: B turns (rows), S positions of a whole row (prompt, then action, then padding), T action tokens
(the longest action of the batch), V vocabulary. ``logp_BT[b, t]`` belongs to the t-th token that turn b *sampled*.

A worked example: one episode of the chain ``(pioneer, observer)``, prompt "The film" = ``[5, 6]``, end of sequence = 0.

    pioneer hears nothing:    prompt_ids [5, 6]              samples [7, 0]     Turn.finished (it sampled the 0)
    observer hears "bad":     prompt_ids [9, 5, 6, 7, 5, 6]  samples [8, 3, 4]  not finished (cut at three tokens)

If one policy had played both roles, its Batch (B=2, S=9, T=3) would be

    ids_BS      5 6 7 0 . . . . .        start_B  2     mask_BT  1 1 0     action_BT  7 0 .
                9 5 6 7 5 6 8 3 4                 6              1 1 1                8 3 4

The end of sequence an agent sampled is trained; padding (shown as a dot) never is, and nothing ever tests a padding
*id*: lengths alone say where a row ends, so a prompt may contain any id.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, TypedDict

from coevolve.late import Tensor, torch
from coevolve.settings import Count, CountFromZero, NotNegative, Positive, PositiveFraction, check_fields

Role = str
PolicyName = str
Metrics = dict[str, float]
State = Mapping[str, Any]
"""What a rule carries from step to step: KL weights, running moments, moving baselines. Plain data that JSON holds, so
that a checkpoint does; never changed in place."""


class Message(TypedDict):
    """One chat message, as in every chat template."""

    role: str
    content: str


class Instruction(str):
    """A prompt for any model: a user message where the policy speaks through a chat template, plain text elsewhere."""

    __slots__ = ()


class ToolResult(str):
    """What a called tool returned: a message of the role ``tool``. tool: the name of the function. failed: it was not
    there or it raised, and this is the reason."""

    tool = ""
    failed = False

    @classmethod
    def of(cls, tool: str, text: str, failed: bool = False) -> ToolResult:
        found = cls(whole_characters(text))
        found.tool, found.failed = whole_characters(tool), failed
        return found


def whole_characters(text: str) -> str:
    """The text with "?" in place of halves of characters, which JSON can escape and no tokenizer reads."""
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of a task. ``id`` is unique within the task's split; ``data`` holds the row's columns."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)


_COLDEST = 1e-6
"""Less is as good as greedy, and the least that float32 holds makes logits infinite."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How turns are sampled. Defaults are the untouched distribution of the model.

    max_new_tokens: tokens at most, the end of sequence included; a pair (low, high) draws one length per step, both
    ends included (CORY, section 4). temperature: 0 is greedy. top_k: 0 is off. top_p: 1.0 is off.
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
        """The same with one fixed length."""
        return dataclasses.replace(self, max_new_tokens=tokens)

    @property
    def truncated(self) -> bool:
        """True if tokens are drawn from another distribution than the log-probabilities describe."""
        return self.top_k > 0 or self.top_p < 1 or self.repetition_penalty != 1.0


@dataclass(slots=True)
class Turn:
    """One role spoke once: the unit of training, with exactly the ids it was fed and the ids it sampled.

    logps[t] is the log-probability of action_ids[t] under the distribution it was drawn from (temperature included,
    truncation not). ``text`` is the decoded action without special tokens. ``finished``: it ended by itself, and then
    action_ids[-1] is the end of sequence. ``round`` counts the turns of this role in this episode from 0. ``reward`` is
    what the task paid, None until it was scored; the mean where the turn is part of several joints. ``temperature`` is
    what logps were taken at (1 when greedy). ``excess`` is what truncated sampling (top-k, top-p, repetition penalty)
    added to the log-probabilities, in nats. ``peers`` names the turns it is compared with. ``weight`` is how much it
    counts in its episode: 1, or less where a play sampled several continuations of one state (1 / their number, along
    the whole path), so that deep levels of a tree do not outweigh its root. ``heard``: what the play told it.
    ``version``: of the weights that it was sampled with.
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


@dataclass(frozen=True, slots=True)
class Joint:
    """What the task judged together: the turns of one joint action, what each was paid, and what it continues.

    after: the position in ``Episode.joints`` of the joint that led here, None for a beginning. answered: that joint
    answers for this one, so its return has this one's in it.
    """

    turns: tuple[Turn, ...]
    rewards: tuple[float, ...]
    after: int | None = None
    answered: bool = True

    def by_role(self) -> dict[Role, float]:
        """What each role was paid. Of several turns the mean: each of them was paid for the whole joint."""
        paid: dict[Role, list[float]] = {}
        for turn, reward in zip(self.turns, self.rewards, strict=True):
            paid.setdefault(turn.role, []).append(reward)
        return {role: fmean(rewards) for role, rewards in paid.items()}


@dataclass(slots=True)
class Episode:
    """All turns on one problem by one member of its group, and its joints, in the order they were spoken and scored.

    parts: the task's components of what it came to, once they were asked for (``measure.note_parts``).
    """

    problem: Problem
    member: int
    turns: list[Turn] = field(default_factory=list)
    joints: list[Joint] = field(default_factory=list)
    parts: Metrics = field(default_factory=dict)

    def depths(self) -> list[int]:
        """How many joints led to each joint."""
        found: list[int] = []
        for joint in self.joints:
            found.append(0 if joint.after is None else found[joint.after] + 1)
        return found

    def history(self, last: int | None) -> tuple[tuple[Turn, ...], ...]:
        """The turns of the joint at this position and of those that it continues, the first one first."""
        found: list[tuple[Turn, ...]] = []
        while last is not None:
            found.append(self.joints[last].turns)
            last = self.joints[last].after
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class Say:
    """A request for one turn: these ids in, an action out. ``key`` (64 bit) alone decides the random numbers.

    told: called with each token id as it is sampled, by engines that sample token by token in this process (the local
    one); others are silent until the turn is whole. What is sampled is the same.
    """

    role: Role
    policy: PolicyName
    problem: Problem
    member: int
    round: int
    prompt_ids: Sequence[int]
    sampling: Sampling
    key: int
    told: Callable[[int], None] | None = field(default=None, compare=False, repr=False)

    def answered(
        self,
        action_ids: Sequence[int],
        logps: Sequence[float],
        text: str,
        finished: bool,
        excess: float = 0.0,
        version: int = 0,
    ) -> Turn:
        """The turn that this request became."""
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
    """What a reward judges: turns on one problem, and the joints before them. It returns one number per turn."""

    problem: Problem
    turns: tuple[Turn, ...]
    history: tuple[tuple[Turn, ...], ...] = ()

    def said(self) -> dict[Role, str]:
        """What each role said, the last of several turns."""
        return {turn.role: turn.text for turn in self.turns}


@dataclass(frozen=True, slots=True)
class Row:
    """A turn to be learnt from: what it is held responsible for, and where it stands in the step.

    episode: its position among the step's episodes. joint: that of the joint it was part of (the first one, of several)
    among all joints of the step; -1 if it was part of none. extra: a rule added it (``Rows``), and nobody sampled it
    from this prompt. paid: the size of what its credit was summed from, so that a credit of nothing but rounding can be
    told: the episode's rewards without their signs.
    """

    turn: Turn
    credit: float
    episode: int
    joint: int = -1
    extra: bool = False
    paid: float = 0.0


@dataclass(frozen=True)
class Batch:
    """The turns of one policy, ready for a model. See the module's example.

    ids_BS long; start_B long, prompt length; length_B long, prompt + action; action_BT long (0 where padded);
    mask_BT bool; logp_BT float, as sampled; credit_B float; reward_B float, the turn's own pay (NaN: nobody scored
    it); peers_B long, equal numbers are compared with each other; temperature_B float, what the row was sampled at (1
    for greedy); weight_B float, ``Turn.weight`` times turns per episode, so that the mean of weight_B * x_B over rows
    is the mean over episodes of the sum over an episode's turns of weight * x; role_B long, which of ``roles`` (of the
    whole step) spoke; episode_B and joint_B long, extra_B bool, paid_B float, as in ``Row``; version_B long, of the
    weights that sampled the row (None: nobody knows, and nobody compares).
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
        """The named rows, with S and T cut to what these rows need."""
        steps = int((self.length_B - self.start_B)[rows_B].max())
        width = int(self.length_B[rows_B].max())
        cut = {"S": width, "T": steps}

        def take(name: str, value: Tensor) -> Tensor:
            rows = value[rows_B]
            return rows[:, : cut[name[-1]]] if name[-1] in cut else rows

        return self.replace(**{name: take(name, value) for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}

    def replace(self, **changes: Any) -> Batch:
        return dataclasses.replace(self, **changes)

    def to(self, device: torch.device | str) -> Batch:
        return self.replace(**{name: _placed(value, device) for name, value in self.tensors().items()})


@dataclass(frozen=True)
class Lesson:
    """What a step has to teach: all its episodes, and the batch of every policy that learns, described."""

    episodes: Sequence[Episode]
    batches: Mapping[PolicyName, Batch]


@dataclass(frozen=True)
class Targets:
    """What the loss aims at: adv_BT for the policy, return_BT for the critic (None without one).

    eta: weight of the KL penalty, wherever the rule has it. columns: anything else that a loss wants to know of every
    row, by a name that ends in _B or _BT. metrics: what the advantage has to say about the batch, to be logged.
    """

    adv_BT: Tensor
    return_BT: Tensor | None = None
    eta: float = 0.0
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    def select(self, rows_B: Tensor, steps: int) -> Targets:
        """The named rows, cut to ``steps`` action tokens (the T of the matching ``Batch.select``)."""
        return self._mapped(lambda x: x[rows_B] if x.ndim == 1 else x[rows_B, :steps])

    def to(self, device: torch.device | str) -> Targets:
        return self._mapped(lambda x: _placed(x, device))

    def _mapped(self, of: Callable[[Tensor], Tensor]) -> Targets:
        returns = None if self.return_BT is None else of(self.return_BT)
        columns = {name: of(x) for name, x in self.columns.items()}
        return dataclasses.replace(self, adv_BT=of(self.adv_BT), return_BT=returns, columns=columns)


def _placed(x: Tensor, device: torch.device | str) -> Tensor:
    """On the device, through pinned memory, which a GPU reads while the CPU goes on."""
    return (x.pin_memory() if str(device).startswith("cuda") else x).to(device, non_blocking=True)


@dataclass(frozen=True)
class Outputs:
    """What one forward says about the actions, differentiable: logp_BT; value_BT, where there is a critic; entropy_BT,
    of the distribution each token was drawn from, in nats; kl_BT, KL(policy || reference) over the whole vocabulary,
    where the objective wants it."""

    logp_BT: Tensor
    value_BT: Tensor | None = None
    entropy_BT: Tensor | None = None
    kl_BT: Tensor | None = None


Play = Callable[[Problem, Any], Coroutine[Any, Any, None]]
"""(problem, team) -> the interaction; team is a ``play.Roles``."""
Cast = Callable[[int], Mapping[Role, PolicyName]]
Reward = Callable[[Sequence[Case]], list[list[float]]]
"""What the task would pay these cases, one number per turn of each."""
Credit = Callable[[Sequence[Episode], Reward], list[list[float]]]
"""(all episodes of a step, the task's reward for anything else that might have been said) -> for each episode, one
number per turn: what it is held responsible for."""
Rows = Callable[[Sequence[Episode], Sequence[Row]], Sequence[Row]]
"""(all episodes of a step, a row for each of their turns) -> further rows to learn from."""
Advantage = Callable[[Lesson, State], tuple[Mapping[PolicyName, Targets], State]]
"""(everybody's batches and all episodes, state) -> (targets of every policy that is to learn, the next state)."""
Follow = Callable[
    [Lesson, PolicyName, Tensor, Mapping[PolicyName, Targets], State], tuple[Mapping[PolicyName, Targets], State]
]
"""(everybody's batches, who has just learnt, its log-probabilities since, [B, T], all targets, state) -> (the targets
from here on, the next state)."""
LossAggregation = Callable[[Batch], Tensor]
"""(mini-)batch -> weight_BT: how much each token counts; the loss of a batch is the weighted *sum* over its tokens."""
Loss = Callable[[Outputs, Batch, Targets, Tensor], tuple[Tensor, Mapping[str, Tensor]]]
"""(outputs, batch, targets, weight_BT) -> (scalar, detached metrics); both add up over micro-batches.

Metrics named ``loss/...`` are terms of the scalar, those that end in ``/max`` the largest of something; others are
weighted sums over tokens, reported as weighted means.
"""


Prompt = str | Sequence[Message] | Sequence[Turn | str]
"""What a role is told: text; chat messages; or its own last Turn followed by new text, spliced as exact token ids."""


@dataclass(frozen=True, slots=True)
class WithTools:
    """A prompt of a role that may call functions. tools: what the chat template is told of them, as JSON schemas."""

    prompt: Prompt
    tools: tuple[Mapping[str, Any], ...]


Asked = Prompt | WithTools
"""What an engine makes token ids of."""


@dataclass(frozen=True)
class Objective:
    """What an update minimises, and in how many steps.

    epochs: passes over each batch. minibatch: rows per optimiser step (None: all). together: ``peers`` never splits
    turns that are compared with each other, for losses of several rows; ``row`` splits anywhere. kl: the loss
    differentiates ``Outputs.kl_BT``, for which every pass has a forward of the reference, too. staleness: updates by
    which turns may be older than the weights that learn, 0 or 1 (``Engine``'s). Policies that learn side by side call
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
    """A training rule as a value. The trainer runs it and knows no algorithm by name.

    credit: what each turn is held responsible for. advantage: (lesson, state) -> targets and the next state. objective:
    what the update minimises. start: the state at step 0. reference: needs a frozen start policy (KL). critic: needs a
    value head, on every policy, or on those of these names. logp_old: batches have the learner's own log-probabilities,
    where a sampler's differ and a batch is used more than once. rows: what else is learnt from. follow: with one,
    policies learn in turn, in an order drawn for each step, and it says what follows from each update for the others.
    resample: how many times a step plays other problems in place of those that have nothing to teach it
    (``dynamic_sampling``). caution: what whoever trains with it should know, said once. kept: what of the state stays
    at a ``reset`` of the trainer, as weights and value heads do. warmup: first steps, in which it is no mistake that
    the advantage leaves policies out. A rule that draws random
    numbers takes them from ``noise``.
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
    """What it was made with: a checkpoint belongs to one algorithm."""

    def has_critic(self, name: PolicyName) -> bool:
        """Whether this policy needs a value head."""
        return self.critic if isinstance(self.critic, bool) else name in self.critic
