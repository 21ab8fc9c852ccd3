"""Our MAGRPO family against comlrl 1.4.3 on the same weights, prompts and sampled tokens, in one process.

    pip install 'coevolve[peers]'
    python benchmarks/parity_comlrl.py     # parity, then what each defect changes; exit code 1 without parity

Its own trainers sample, pay and differentiate; only their optimisers are exchanged for recorders: weights never move.
We replay the sampled tokens through our plays, credit, advantage and loss. Where its code departs from its documented
objective, a small function below does the same to ours; the later tables take them away one by one. docs/parity.md
says what the numbers mean. Letters: B turns (rows), T action tokens, k completions per node, N agents.
"""

from __future__ import annotations

import os

os.environ |= {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import dataclasses
import importlib.metadata
import itertools
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from comlrl.trainers import reinforce as peers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from coevolve import LocalEngine, LocalLearner, PolicySpec, Problem, Sampling, build_policies
from coevolve.algorithms import ALGORITHMS
from coevolve.collate import collate, rows_of
from coevolve.credit import team_return
from coevolve.maths import groups
from coevolve.models.load import load_causal_lm, load_tokenizer
from coevolve.plays import rounds, tree
from coevolve.rollout import Stage, rollout
from coevolve.tasks import Sentiment
from coevolve.types import Batch, Case, Episode, Lesson, Play, Say, Targets, Turn

VERSION = "1.4.3"
TOLERANCE = 1e-5
ROLES = ("first", "second")
TRAINERS = {
    "magrpo": peers.MAGRPOTrainer,
    "marloo": peers.MARLOOTrainer,
    "maremax": peers.MAReMaxTrainer,
    "mareinforce": peers.MAREINFORCETrainer,
}
TINY = "coevolve-tiny"
WORDS = 24
PAD, EOS = "<pad>", "<eos>"

# --- One experiment, and the team that plays it --------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What both sides do. buffer: nodes per agent that the peer collects before it updates."""

    algorithm: str = "magrpo"
    joint: str = "aligned"
    turns: int = 1
    k: int = 4
    tokens: int = 24
    buffer: int = 1
    normalise: bool = False
    temperature: float = 1.0
    discount: float = 1.0


class Pair:
    """Two agents, each as the peer's model and as our policy, from the same folder of weights; and their problems."""

    def __init__(self, folders: Sequence[str], tokenizer: Any, prompts: Sequence[str]) -> None:
        self.models = [load_causal_lm(folder) for folder in folders]
        self.tokenizers = dict.fromkeys(ROLES, tokenizer)
        specs = {role: PolicySpec(model=folder, device="cpu") for role, folder in zip(ROLES, folders, strict=True)}
        self.policies = built(specs, tokenizer, critic=False)
        self.items = [{"prompt": prompt} for prompt in prompts]


def built(specs: Mapping[str, PolicySpec], tokenizer: Any, critic: bool | tuple[str, ...]) -> dict[str, LocalLearner]:
    """Policies with this tokenizer: transformers takes any tokenizer of a Qwen2's folder for Qwen2's own."""
    with mock.patch("coevolve.learners.build.load_tokenizer", return_value=tokenizer):
        return build_policies(specs, reference=False, critic=critic, steps=1, seed=0)


def random_pair(folder: Path, pad: str, prompts: Sequence[str]) -> Pair:
    """A Qwen2 and a Llama with random weights, well away from uniform, on a vocabulary of words. pad: its padding."""
    vocabulary = {token: i for i, token in enumerate((PAD, EOS, *(f"w{i}" for i in range(WORDS))))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=EOS, pad_token=pad, unk_token=PAD)
    sizes = {"vocab_size": len(vocabulary), "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": None, "eos_token_id": vocabulary[EOS], "pad_token_id": vocabulary[pad]}
    torch.manual_seed(0)
    made = (
        Qwen2ForCausalLM(Qwen2Config(**sizes, **ids, hidden_size=32, num_key_value_heads=2, initializer_range=0.1)),
        LlamaForCausalLM(LlamaConfig(**sizes, **ids, hidden_size=48, num_key_value_heads=4, initializer_range=0.1)),
    )
    for model in made:
        model.save_pretrained(folder / model.config.model_type)
        tokenizer.save_pretrained(folder / model.config.model_type)
    return Pair([str(folder / model.config.model_type) for model in made], tokenizer, prompts)


def word_prompts(n: int) -> list[str]:
    return [" ".join(f"w{random.Random(f'{i} {j}').randrange(WORDS)}" for j in range(4 + i % 3)) for i in range(n)]


def worth(texts: Sequence[str]) -> float:
    """A team reward in the manner of the writing tasks: how much longer the second text is, and what both name."""
    first, second = (set(text.split()) for text in texts)
    shared = len(first & second) / max(1, len(first | second))
    return min(len(texts[1]) / max(1, len(texts[0])), 3.0) - 1.0 + shared


def told_next(prompt: str, texts: Sequence[str]) -> str:
    """What every agent is told before the second turn."""
    return " ".join((prompt, *texts))


# --- Their side ------------------------------------------------------------------------------------------------------


class Recorder:
    """Instead of an optimiser: keeps the gradient of every step and leaves the weights alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters, self.steps = list(model.parameters()), list[Tensor]()

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        self.steps.append(flat(self.parameters))


class Probe(torch.nn.Module):
    """Instead of a model: equal logits whose gradients tell which advantage a loss gave to each row."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.anchor, self.logits = vocabulary, torch.nn.Parameter(torch.zeros(())), list[Tensor]()

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        self.logits.append(torch.zeros(*input_ids.shape, self.vocabulary, requires_grad=True))
        return SimpleNamespace(logits=self.logits[-1])


class Peer:
    """One run of the peer's ``train``: the node samples of each agent in the order they were trained on, the steps it
    took (gradients), and the texts its reward was given."""

    def __init__(self, setting: Setting, pair: Pair) -> None:
        torch.manual_seed(1)
        random.seed(1)
        self.setting, self.pair, self.judged = setting, pair, list[tuple[str, ...]]()
        self.trainer = self._trainer()
        self.samples: list[list[Any]] = [[] for _ in ROLES]
        process = self.trainer._process_buffer

        def watched(agent: int, buffer: list[Any]) -> Any:
            self.samples[agent] += buffer
            return process(agent, buffer)

        self.trainer._process_buffer = watched
        tokenizer = pair.tokenizers[ROLES[0]]
        special = {tokenizer.pad_token_id} - {tokenizer.eos_token_id}  # sampled, it would cut the text but not the loss
        self.trainer.train(**({"suppress_tokens": sorted(special)} if special else {}))

    def _trainer(self) -> Any:
        setting, cls = self.setting, TRAINERS[self.setting.algorithm]
        args = cls.default_config_cls(
            num_train_epochs=1, num_agents=len(ROLES), num_generations=setting.k, max_new_tokens=setting.tokens,
            temperature=setting.temperature, top_p=1.0, top_k=0, num_turns=setting.turns, discount=setting.discount,
            joint_mode=setting.joint, early_termination_threshold=None, external_prompt_passthrough=True,
            eval_interval=0, rollout_buffer_size=setting.buffer, advantage_normalization=setting.normalise,
        )  # fmt: skip
        trainer = cls(
            agents=self.pair.models, num_agents=len(ROLES), tokenizer=list(self.pair.tokenizers.values()), args=args,
            train_dataset=self.pair.items, reward_func=self._reward, external_transition=self._transition,
        )  # fmt: skip
        trainer.optimizers, trainer.verbose = [Recorder(model) for model in self.pair.models], False
        return trainer

    def _reward(self, first: Sequence[str], second: Sequence[str]) -> list[float]:
        self.judged += zip(first, second, strict=True)
        return [worth(texts) for texts in zip(first, second, strict=True)]

    @staticmethod
    def _transition(prompt: str, agent_completions: Sequence[str], num_agents: int, **_: Any) -> list[str]:
        return [told_next(prompt, agent_completions)] * num_agents

    def steps(self, agent: int) -> list[Tensor]:
        return self.trainer.optimizers[agent].steps

    def gradient(self, agent: int) -> Tensor:
        return torch.stack(self.steps(agent)).sum(0)

    def advantages(self, agent: int) -> Tensor:
        """What its loss multiplies each row's log-probability with; shape B."""
        return torch.cat([self.used(sample.returns) for sample in self.samples[agent]])

    def documented(self, agent: int) -> Tensor:
        """The gradient of its own loss on rows that the defects of its mask cannot reach: without padding, and with one
        more token for it to drop. Nodes are averaged turn by turn, as if one buffer held them all."""
        model, samples = self.pair.models[agent], self.samples[agent]
        eos, turns = self.pair.tokenizers[ROLES[agent]].eos_token_id, [sample.turn_idx for sample in samples]
        model.zero_grad()
        for sample in samples:
            rows = sample.completions_data["completion_input_ids"][0]
            clean = [torch.tensor([*sampled(ids.tolist(), eos), eos]) for ids in rows]
            data = {**sample.completions_data, "completion_input_ids": [clean]}
            loss = self.trainer._compute_loss_with_gradients(model, data, sample.returns)
            (loss / turns.count(sample.turn_idx)).backward()
        return flat(list(model.parameters()))

    def used(self, returns: Sequence[float]) -> Tensor:
        """The advantages that its loss gives to the k rows of a node, read off the gradient of a stand-in's logits."""
        probe = Probe(vocabulary := 8)
        rows = {"prompt_input_ids": torch.zeros(1, 1, dtype=torch.long), "reference_kls": []}
        rows["completion_input_ids"] = [[torch.zeros(2, dtype=torch.long)] * self.setting.k]
        self.trainer._compute_loss_with_gradients(probe, rows, returns).backward()
        grad_G = torch.stack([logits.grad[0, 0, 0] for logits in probe.logits])
        return -grad_G * len(grad_G) / (1 - 1 / vocabulary)


def flat(parameters: Sequence[torch.nn.Parameter]) -> Tensor:
    """All gradients in one line; 0 where there is none."""
    grads = (torch.zeros_like(p) if p.grad is None else p.grad for p in parameters)
    return torch.cat([grad.flatten() for grad in grads])


# --- Their departures from the objective they document, done to ours ------------------------------------------------

Tokens = Callable[[list[int], int], list[int]]
"""(a row as generated, padded to the longest of its node; end of sequence) -> the tokens that are trained."""


def sampled(row: list[int], eos: int) -> list[int]:
    """No defect: what the policy sampled, its end of sequence included."""
    return row[: row.index(eos) + 1] if eos in row else row


def last_dropped(row: list[int], eos: int) -> list[int]:
    """Defect: logits are cut by one too many, so the last position of the padded row is never trained."""
    return sampled(row, eos)[: len(row) - 1]


def padding_scored(row: list[int], eos: int) -> list[int]:
    """Defect: there is no mask, so padding counts as actions."""
    return row


def as_scored(row: list[int], eos: int) -> list[int]:
    """Both at once, as in its loss."""
    return row[:-1]


def recentred(adv_B: Tensor, peers_B: Tensor) -> Tensor:
    """Defect: ``advantage_normalization`` subtracts the mean again, so whatever baseline came before is gone."""
    centred_B = adv_B - groups.group_mean(adv_B, peers_B)
    return centred_B / groups.group_mean(centred_B.square(), peers_B).sqrt().clamp(min=1e-6)


def summed_over_partners(credit_B: Tensor, setting: Setting) -> Tensor:
    """Defect: a completion that met k^(N-1) partners is paid their sum; ours, and the aligned scale, is the mean."""
    return credit_B * (setting.k ** (len(ROLES) - 1) if setting.joint == "cross" else 1)


def step_weights(turns: Sequence[int], buffer: int) -> list[float]:
    """Defect: each full buffer is split by turn and every part is a step of its own, averaged over its own nodes. So in
    the sum over steps a node counts 1 / (nodes in its part), however many nodes its turn has; and the policy of the
    first step has moved when the second is taken, without a ratio."""
    found: list[float] = []
    for start in range(0, len(turns), buffer):
        part = turns[start : start + buffer]
        found += [1 / part.count(turn) for turn in part]
    return found


# --- Our side --------------------------------------------------------------------------------------------------------


class Replayed(LocalEngine):
    """An engine that says what the peer sampled, and trains the tokens that ``tokens`` makes of it."""

    def __init__(self, peer: Peer, tokens: Tokens) -> None:
        super().__init__(peer.pair.policies)
        self.tokens = tokens
        self.rows: dict[tuple[Any, ...], list[list[int]]] = defaultdict(list)
        for role, samples in zip(ROLES, peer.samples, strict=True):
            for sample in samples:
                prompt = sample.completions_data["prompt_input_ids"][0].tolist()
                rows = sample.completions_data["completion_input_ids"][0]
                self.rows[(role, *prompt)] += [row.tolist() for row in rows]

    def generate(self, says: Mapping[str, Sequence[Say]]) -> Mapping[str, list[Turn]]:
        return {policy: [self._turn(say) for say in asked] for policy, asked in says.items()}

    def _turn(self, say: Say) -> Turn:
        tokenizer = self.policies[say.policy].tokenizer
        row = self.rows[(say.policy, *say.prompt_ids)].pop(0)
        text = tokenizer.decode(sampled(row, tokenizer.eos_token_id), skip_special_tokens=True)
        ids = self.tokens(row, tokenizer.eos_token_id)
        return say.answered(ids, [0.0] * len(ids), text, finished=tokenizer.eos_token_id in row)


class Game:
    """The peer's problems, prompts and reward as a task of ours."""

    train = test = ()

    def prompt(self, p: Problem, role: str, heard: Sequence[Any]) -> str:
        return heard[-1] if heard else p.data["prompt"]

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        return [[worth([turn.text for turn in case.turns])] * len(case.turns) for case in cases]


def feedback(p: Problem, turns: Sequence[Turn]) -> list[str]:
    return [told_next(p.data["prompt"], [turn.text for turn in turns])] * len(turns)


@dataclass(frozen=True)
class Ours:
    """Our gradient on the peer's samples; the defaults have none of the peer's defects.

    borrowed: the advantages are those that the peer's loss used. joint: of our play, if not the peer's. temperature: at
    which tokens are scored; None: at which they were sampled.
    """

    peer: Peer
    tokens: Tokens = sampled
    recentre: bool = False
    partners: bool = False
    stepwise: bool = False
    borrowed: bool = False
    gamma: float = 1.0
    std: str = "none"
    temperature: float | None = None
    joint: str | None = None

    @cached_property
    def episodes(self) -> list[Episode]:
        setting = self.peer.setting
        plain = setting.turns == 1 and setting.joint == "aligned"  # then the k members of a problem are its group
        joint: Any = self.joint or setting.joint
        play: Play = rounds() if plain else tree(setting.turns, setting.k, joint=joint, feedback=feedback)
        engine, sampling = Replayed(self.peer, self.tokens), Sampling(setting.tokens, self.scored_at)
        problems = [Problem(str(i), item) for i, item in enumerate(self.peer.pair.items)]
        stage = Stage({role: role for role in ROLES}, Game(), engine, sampling)
        return rollout(play, problems, stage, members=setting.k if plain else 1)

    @property
    def scored_at(self) -> float:
        return self.peer.setting.temperature if self.temperature is None else self.temperature

    @cached_property
    def rule(self) -> Any:
        return ALGORITHMS[self.peer.setting.algorithm](credit=team_return(self.gamma), std=self.std)

    def batch(self, agent: int, problem: int | None = None) -> Batch:
        episodes = [e for e in self.episodes if problem is None or e.problem.id == str(problem)]
        batch = collate(rows_of(episodes, self.rule.credit, Game().reward), ROLES[agent])
        if self.partners:
            batch = batch.replace(credit_B=summed_over_partners(batch.credit_B, self.peer.setting))
        return batch

    def advantages(self, agent: int, problem: int | None = None) -> Tensor:
        """Every row's advantage, rows without a token included; shape B."""
        if self.borrowed:
            return self.peer.advantages(agent)
        batch = self.batch(agent, problem)
        every = batch.replace(mask_BT=torch.ones_like(batch.mask_BT))
        adv_B = self.rule.advantage(Lesson([], {"": every}), {})[0][""].adv_BT[:, 0]
        return recentred(adv_B, batch.peers_B) if self.recentre else adv_B

    def gradient(self, agent: int, problem: int | None = None) -> Tensor:
        policy, batch = self.peer.pair.policies[ROLES[agent]], self.batch(agent, problem)
        targets = Targets(self.advantages(agent, problem)[:, None] * batch.mask_BT)
        weight_BT = self.rule.objective.loss_aggregation(batch)
        if self.stepwise:
            weight_BT = batch.mask_BT * self._per_step(agent)[:, None]
        return slope(policy, self.rule, batch, targets, weight_BT)

    def _per_step(self, agent: int) -> Tensor:
        turns = [sample.turn_idx for sample in self.peer.samples[agent]]
        weights = step_weights(turns, self.peer.setting.buffer)
        return torch.tensor(weights).repeat_interleave(self.peer.setting.k) / self.peer.setting.k


def slope(policy: LocalLearner, rule: Any, batch: Batch, targets: Targets, weight_BT: Tensor | None = None) -> Tensor:
    """The gradient of a policy's loss, in one line. weight_BT: of its tokens, if not those of the rule."""
    policy.optimizer.zero_grad()  # type: ignore[union-attr]
    weight_BT = rule.objective.loss_aggregation(batch) if weight_BT is None else weight_BT
    rule.objective.loss(policy.outputs(batch), batch, targets, weight_BT)[0].backward()
    return flat(policy.parameters)


def answer(problem: Problem, role: str, prompt: list[int], ids: list[int], member: int = 0, round: int = 0) -> Turn:
    """What a role's policy of the same name sampled, as a turn of ours."""
    turn = Turn(role, role, problem, member, round, prompt, ids, [0.0] * len(ids), "", True)
    turn.peers = (problem.id, role, round)
    return turn


# --- Parity ----------------------------------------------------------------------------------------------------------

PLAYS = (("aligned", 1, 2), ("aligned", 2, 64), ("aligned", 2, 2), ("cross", 1, 2), ("cross", 2, 64), ("cross", 2, 2))
"""joint, turns, buffer. Two problems: a buffer of 64 takes all nodes at once, 2 is the peer's default."""


def like_theirs(peer: Peer) -> Ours:
    """Ours with all defects that the peer has in this setting."""
    setting = peer.setting
    small = setting.turns > 1 and setting.buffer < len(peer.samples[0])
    return Ours(peer, as_scored, recentre=setting.normalise, partners=True, stepwise=small)


def errors(ours: Ours) -> tuple[float, float, float]:
    """Of the worse agent: the largest error of an advantage, the relative error of the gradient, and that of the
    gradient without defects of mask and steps against the peer's loss on rows that these do not reach."""
    peer, found = ours.peer, []
    clean = dataclasses.replace(ours, tokens=sampled, stepwise=False)
    for agent in range(len(ROLES)):
        theirs = peer.advantages(agent)
        wrong = float((ours.advantages(agent) - theirs).abs().max() / theirs.abs().max())
        documented = distance(peer.documented(agent), clean.gradient(agent))
        found.append((wrong, distance(peer.gradient(agent), ours.gradient(agent)), documented))
    advantage, gradient, documented = map(max, zip(*found, strict=True))
    return advantage, gradient, documented


def distance(reference: Tensor, other: Tensor) -> float:
    return float((reference - other).norm() / reference.norm())


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def parity(pair: Pair) -> bool:
    """Print the errors; True if every one is within TOLERANCE."""
    table("joint", "turns", "buffer", "normalised", "advantages", *TRAINERS, "documented loss")
    worst = 0.0
    for (joint, turns, buffer), normalise in itertools.product(PLAYS, (False, True)):
        settings = (Setting(name, joint, turns, 3, 8, buffer, normalise) for name in TRAINERS)
        found = [errors(like_theirs(Peer(setting, pair))) for setting in settings]
        advantages, gradients, documented = zip(*found, strict=True)
        shown = (f"{error:.0e}" for error in (max(advantages), *gradients, max(documented)))
        row(joint, turns, buffer, "yes" if normalise else "no", *shown)
        worst = max(worst, *advantages, *gradients, *documented)
    peer = Peer(Setting(turns=2, k=3, tokens=8, buffer=64, normalise=True), pair)
    plain = errors(Ours(peer, as_scored, std="group"))
    print(f'\nmagrpo(std="group") against MAGRPO normalised: {", ".join(f"{error:.0e}" for error in plain)}')
    print(f"largest error {max(worst, *plain):.1e}, tolerance {TOLERANCE:.0e}\n")
    return max(worst, *plain) < TOLERANCE


def table(*heads: str) -> None:
    row(*heads)
    row(*("---" for _ in heads))


def row(*cells: object) -> None:
    shown = (f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells)
    print("| " + " | ".join(shown) + " |", flush=True)


# --- What each defect changes ----------------------------------------------------------------------------------------


def together(gradients: Callable[[int], Tensor]) -> Tensor:
    """The gradients of both agents in one line."""
    return torch.cat([gradients(agent) for agent in range(len(ROLES))])


def stepwise(peer: Peer) -> list[Tensor]:
    """The peer's steps, one per problem (buffer 1, one turn), both agents in one line."""
    return [together(lambda agent, i=i: peer.steps(agent)[i]) for i in range(len(peer.pair.items))]


def by_problem(ours: Ours) -> list[Tensor]:
    return [together(lambda agent, i=i: ours.gradient(agent, i)) for i in range(len(ours.peer.pair.items))]


def changed(right: Sequence[Tensor], wrong: Sequence[Tensor], rows: Tensor) -> tuple[float, ...]:
    """Cosine of one problem's gradient (median), cosine of the mean gradient, its relative difference, and both of the
    mean without the parameters ``rows`` (True where to be left out)."""
    mean, other = torch.stack(list(right)).mean(0), torch.stack(list(wrong)).mean(0)
    one = statistics.median(cosine(a, b) for a, b in zip(right, wrong, strict=True) if a.any() and b.any())
    kept, also = mean[~rows], other[~rows]
    return one, cosine(mean, other), distance(mean, other), cosine(kept, also), distance(kept, also)


def padding_rows(pair: Pair) -> Tensor:
    """True for the parameters of both agents that only the padding token has: its embedding and its output row."""
    found = []
    for role, model in zip(ROLES, pair.models, strict=True):
        tables = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
        for parameter in model.parameters():
            own = torch.zeros_like(parameter, dtype=torch.bool)
            if id(parameter) in tables:
                own[pair.tokenizers[role].pad_token_id] = True
            found.append(own.flatten())
    return torch.cat(found)


@dataclass(frozen=True)
class Count:
    """Tokens of a run: in its loss, of these padding; sampled, of these never trained; the same of ends of sequence."""

    trained: int
    padding: int
    sampled: int
    dropped: int
    ends: int
    ends_dropped: int

    @classmethod
    def of(cls, peer: Peer) -> Count:
        eos = peer.pair.tokenizers[ROLES[0]].eos_token_id
        nodes = [sample.completions_data["completion_input_ids"][0] for sample in itertools.chain(*peer.samples)]
        rows = [row.tolist() for node in nodes for row in node]
        said = [len(sampled(row, eos)) for row in rows]
        full = [eos in row and n == len(row) for row, n in zip(rows, said, strict=True)]
        return cls(
            trained=sum(len(row) - 1 for row in rows),
            padding=sum(max(0, len(row) - 1 - n) for row, n in zip(rows, said, strict=True)),
            sampled=sum(said),
            dropped=sum(n == len(row) for row, n in zip(rows, said, strict=True)),
            ends=sum(eos in row for row in rows),
            ends_dropped=sum(full),
        )


def padding_probability(peer: Peer) -> float:
    """Mean probability that the policies give to the padding where it stands: near 1, training it changes nothing."""
    found = []
    for agent, role in enumerate(ROLES):
        whole, clean_BT = Ours(peer, padding_scored).batch(agent), Ours(peer).batch(agent).mask_BT
        padding_BT = whole.mask_BT.clone()
        padding_BT[:, : clean_BT.shape[1]] &= ~clean_BT
        with torch.no_grad():
            found.append(peer.pair.policies[role].outputs(whole).logp_BT[padding_BT].exp())
    return float(torch.cat(found).mean())


def tokens(pairs: Mapping[str, tuple[Pair, int]]) -> bool:
    """Defects of the token mask, one at a time and both; True if the peer's own gradient is ours with both."""
    without = "without the padding's rows"
    alike = ("cosine, 1 problem", "cosine, 16", "difference", f"cosine {without}", "difference")
    table("weights", "what is wrong", *alike)
    counts, likely, good = {}, {}, True
    for name, (pair, limit) in pairs.items():
        peer = Peer(Setting(tokens=limit), pair)
        counts[name], likely[name] = Count.of(peer), padding_probability(peer)
        right, theirs = by_problem(Ours(peer)), stepwise(peer)
        for what, rule in {"last token dropped": last_dropped, "padding trained": padding_scored}.items():
            row(name, what, *changed(right, by_problem(Ours(peer, rule)), padding_rows(pair)))
        row(name, "both (the peer)", *changed(right, theirs, padding_rows(pair)))
        good &= distance(torch.stack(theirs), torch.stack(by_problem(Ours(peer, as_scored)))) < TOLERANCE
    print()
    table("weights", "loss tokens that are padding", "its probability", "sampled, never trained", "ends, never trained")
    for name, n in counts.items():
        padding = share(n.padding, n.trained), likely[name]
        row(name, *padding, share(n.dropped, n.sampled), share(n.ends_dropped, n.ends))
    return good


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / max(1, whole):.0%})"


def short_answers(random_weights: Pair, trained: Pair) -> None:
    """How often the dropped token is all there was: every answer of a node has one token."""
    table("weights", "longest answer", "turns", "one-token answers", "of these no gradient", "sampled, never trained")
    cases = [("random", random_weights, limit, 1) for limit in (1, 2, 3, 16)]
    for name, pair, limit, turns in (*cases, (TINY, trained, 24, 1), (TINY, trained, 24, 2)):
        peer = Peer(Setting(tokens=limit, turns=turns, k=3), pair)
        eos, ones, lost = pair.tokenizers[ROLES[0]].eos_token_id, 0, 0
        for agent, samples in enumerate(peer.samples):
            for sample, step in zip(samples, peer.steps(agent), strict=True):
                rows = [ids.tolist() for ids in sample.completions_data["completion_input_ids"][0]]
                found = sum(len(sampled(ids, eos)) == 1 for ids in rows)
                alone = len(rows[0]) == 1
                assert not (alone and step.any()), "a node of one-token answers had a gradient"
                ones, lost = ones + found, lost + found * alone
        n = Count.of(peer)
        row(name, limit, turns, ones, share(lost, ones), share(n.dropped, n.sampled))


def normalisation(pair: Pair) -> None:
    """Our tokens and the advantages of each of its trainers, with normalisation on and off."""
    table("trainer", "cosine on : off", "size on / off", "difference to MAGRPO, off", "difference to MAGRPO, on")
    first: dict[bool, Tensor] = {}
    for name, trainer in TRAINERS.items():
        runs = {on: Ours(Peer(Setting(name, buffer=64, normalise=on), pair), borrowed=True) for on in (False, True)}
        found = {on: together(ours.gradient) for on, ours in runs.items()}
        first = first or found
        ratio = float(found[True].norm() / found[False].norm())
        apart = [distance(first[on], found[on]) for on in (False, True)]
        row(trainer.algorithm_name, cosine(*found.values()), ratio, *apart)
    peer = Peer(Setting(normalise=True, tokens=4), pair)
    for returns in ([2.0, 2.0, 2.0, 2.00001], [0.0, 1.0, 2.0, 3.0]):
        print(f"\nreturns {returns}: advantages {[round(a, 2) for a in peer.used(returns).tolist()]}")


def other_defects(pair: Pair) -> None:
    """Our tokens; advantages, weights or temperature as the peer has them."""
    table("defect", "setting", "cosine", "size, with / without", "relative difference")
    for joint in ("cross", "crossed"):
        peer = Peer(Setting(joint=joint, k=3, buffer=64), pair)
        compare(f"joint_mode {joint}", "k 3, 1 turn", Ours(peer, joint="cross"), borrowed=True)
    for gamma in (0.9, 0.5):
        peer = Peer(Setting(turns=2, k=3, tokens=12, buffer=64, discount=gamma), pair)
        compare("discount ignored", f"gamma {gamma}, 2 turns", Ours(peer, gamma=gamma), borrowed=True)
    for buffer in (1, 2):
        peer = Peer(Setting(turns=2, tokens=12, buffer=buffer), pair)
        n, what = len(pair.items), "steps by buffer and turn, added up"
        compare(what, f"buffer {buffer}, 2 turns", Ours(peer), n, stepwise=True)
    for temperature in (0.7, 0.6):
        peer = Peer(Setting(temperature=temperature, buffer=64), pair)
        compare("scored at temperature 1", f"sampled at {temperature}", Ours(peer), temperature=1.0)


def compare(what: str, setting: str, ours: Ours, per: int = 1, **defect: Any) -> None:
    right, wrong = together(ours.gradient), together(dataclasses.replace(ours, **defect).gradient) / per
    row(what, setting, cosine(right, wrong), float(wrong.norm() / right.norm()), distance(right, wrong))


def padded_prompt(pair: Pair) -> None:
    """A prompt that contains the padding id: its rest is taken for the completion."""
    peer = Peer(Setting(), pair)
    prompts = [sample.completions_data["prompt_input_ids"][0] for sample in peer.samples[0]]
    rows = [sample.completions_data["completion_input_ids"][0][0] for sample in peer.samples[0]]
    leaked = [len(prompt) - prompt.tolist().index(pair.tokenizers[ROLES[0]].pad_token_id) for prompt in prompts]
    print(
        f"padding id inside the prompt: {share(sum(leaked), sum(len(r) - 1 for r in rows))} of the loss tokens are "
        f"prompt; texts that reached the reward: {len(set(peer.judged))} ({sorted(set(peer.judged))[:1]}); "
        f"size of the gradient {float(together(peer.gradient).norm())}"
    )


def main() -> int:
    warnings.filterwarnings("ignore")
    disable_progress_bar()
    torch.set_num_threads(1)
    found = importlib.metadata.version("comlrl")
    if found != VERSION:
        print(f"comlrl {found} is installed; this benchmark drives the inner methods of {VERSION}: install that one")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        words, some, two = (random_pair(place / str(n), PAD, word_prompts(n)) for n in (16, 8, 2))
        ended = random_pair(place / "ended", EOS, word_prompts(16))
        task = Sentiment()
        openings = [task.prompt(p, "", ()) for p in task.train[:16]]
        spoken, few = (Pair([TINY] * 2, load_tokenizer(TINY), openings[:n]) for n in (16, 4))
        print("## Parity: largest error of the advantages, relative error of the gradient\n")
        good = parity(two)
        print("## The mask: ours without defects against ours with one, and against theirs\n")
        good &= tokens({"random": (words, 16), "random, padding = end": (ended, 16), TINY: (spoken, 24)})
        print("\n## Short answers\n")
        short_answers(some, few)
        print("\n## advantage_normalization\n")
        normalisation(some)
        print("\n## Returns, steps, temperature\n")
        other_defects(few)
        print()
        padded_prompt(random_pair(place / "inside", EOS, [f"w1 {EOS} {prompt}" for prompt in word_prompts(4)]))
    print(f"\n{time.process_time():.0f} s of CPU; parity {'holds' if good else 'FAILS'} (tolerance {TOLERANCE:.0e})")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
