"""Our IAC and MAAC against comlrl 1.4.3 on the same weights, prompts and sampled tokens, in one process.

    pip install 'coevolve[peers]'
    python benchmarks/parity_critics.py     # exit code 1 without parity

Its own trainers sample, pay, value and differentiate; only their optimisers are exchanged for recorders: weights never
move. We take over the sampled tokens, and everything else is ours: values, targets, advantages, gradients. One thing is
changed in theirs: the central critic reads the prompts one after the other without ``[Agent 0]`` in front, as ours
does. docs/parity.md says what the numbers mean.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parity_comlrl import (  # sets the environment up, so it comes before torch
    EOS,
    PAD,
    ROLES,
    TOLERANCE,
    Pair,
    Recorder,
    answer,
    built,
    distance,
    random_pair,
    row,
    slope,
    table,
    told_next,
    word_prompts,
    worth,
)

# isort: split
import torch
from comlrl.trainers import actor_critic as peers
from torch import Tensor

from coevolve import Episode, Joint, PolicySpec, Problem, Turn
from coevolve.algorithms import iac, maac
from coevolve.collate import collate, rows_of
from coevolve.models.load import load_causal_lm
from coevolve.types import Algorithm, Batch, Lesson

JUDGES = ("judge first", "judge second")


@dataclass(frozen=True)
class Setting:
    """What both sides do. critic: whose head it is."""

    critic: str
    value: str = "v"
    turns: int = 1
    normalise: bool = True
    discount: float = 1.0


class Peer:
    """One run of the peer's ``train``: its samples in the order they were made, and the gradients of its steps."""

    def __init__(self, setting: Setting, pair: Pair, folders: list[str]) -> None:
        torch.manual_seed(1)
        self.setting, self.tokenizer, self.samples = setting, pair.tokenizers[ROLES[0]], list[Any]()
        self.items = pair.items
        agents, critics = [load_causal_lm(f) for f in folders], self._critics(folders)
        for model in agents:
            model.generation_config.suppress_tokens = [self.tokenizer.pad_token_id]  # it would cut what it stands in
        self.trainer = self._trainer(agents, critics)
        heads = [m.value_head for m in (*self.trainer.agents, *self.trainer.critics) if m.value_head is not None]
        for head in heads:
            torch.nn.init.normal_(head.value_projection.weight, std=0.3)
            torch.nn.init.normal_(head.value_projection.bias)
        self._recorded()
        self.trainer.train()

    def _critics(self, folders: list[str]) -> list[Any]:
        count = {"own": 0, "separate": 2, "central": 1}[self.setting.critic]
        return [load_causal_lm(folder) for folder in folders[:count]]

    def _trainer(self, agents: list[Any], critics: list[Any]) -> Any:
        s, central = self.setting, self.setting.critic == "central"
        args: dict[str, Any] = {} if central else {"use_separate_critic": s.critic == "separate"}
        config = (peers.MAACConfig if central else peers.IACConfig)(
            num_train_epochs=1, num_agents=2, max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=0, num_turns=s.turns,
            discount=s.discount, early_termination_threshold=None, external_prompt_passthrough=True, eval_interval=0,
            rollout_buffer_size=len(self.items) * s.turns, advantage_normalization=s.normalise, critic_type=s.value,
            **args,
        )  # fmt: skip
        trainer = (peers.MAACTrainer if central else peers.IACTrainer)(
            agents=agents, critics=critics or None, tokenizer=[self.tokenizer] * 2, args=config,
            train_dataset=self.items, reward_func=self._reward, external_transition=self._transition,
        )  # fmt: skip
        trainer.verbose = False
        return trainer

    @staticmethod
    def _reward(first: list[str], second: list[str]) -> list[float]:
        return [worth(texts) for texts in zip(first, second, strict=True)]

    @staticmethod
    def _transition(prompt: str, agent_completions: list[str], num_agents: int, **_: Any) -> list[str]:
        return [told_next(prompt, agent_completions)] * num_agents

    def _recorded(self) -> None:
        trainer, process = self.trainer, self.trainer._process_buffer
        trainer.agent_optimizers = [Recorder(model) for model in trainer.agents]
        if self.setting.critic == "separate":
            trainer.critic_optimizers = [Recorder(model) for model in trainer.critics]
        if self.setting.critic == "central":
            trainer.critic_optimizer = Recorder(trainer.critics[0])
            trainer._build_critic_input = self._joined

        def watched(agent: int, buffer: list[Any]) -> Any:
            self.samples += buffer
            return process(agent, buffer)

        trainer._process_buffer = watched

    @staticmethod
    def _joined(prompts: list[str], action_completions: list[str] | None = None) -> str:
        """What the central critic reads, without names in it; its Q is not compared."""
        return " ".join(prompts)

    def gradients(self) -> dict[str, Tensor]:
        """By policy, over all steps."""
        trainer = self.trainer
        found = dict(zip(ROLES, trainer.agent_optimizers, strict=True))
        if self.setting.critic == "separate":
            found |= zip(JUDGES, trainer.critic_optimizers, strict=True)
        if self.setting.critic == "central":
            found[JUDGES[0]] = trainer.critic_optimizer
        return {name: torch.stack(recorder.steps).sum(0) for name, recorder in found.items()}


class Ours:
    """Our values, advantages and gradients on the peer's tokens."""

    def __init__(self, peer: Peer, folders: list[str]) -> None:
        self.peer, s = peer, peer.setting
        how: dict[str, Any] = {"value": s.value, "gamma": s.discount, "whiten": s.normalise}
        self.rule: Algorithm = {
            "own": lambda: iac(**how),
            "separate": lambda: iac(critic=dict(zip(ROLES, JUDGES, strict=True)), **how),
            "central": lambda: maac(critic=JUDGES[0], **how),
        }[s.critic]()
        named = [*ROLES, *JUDGES[: {"own": 0, "separate": 2, "central": 1}[s.critic]]]
        specs = {name: PolicySpec(model=folders[i % 2], device="cpu") for i, name in enumerate(named)}
        self.policies = built(specs, peer.tokenizer, self.rule.critic)
        theirs = dict(zip(named, (*peer.trainer.agents, *peer.trainer.critics), strict=False))
        for name, policy in self.policies.items():
            if policy.value_head is not None:
                policy.value_head.load_state_dict(theirs[name].value_head.value_projection.state_dict())
        self.episodes = [self._episode(number) for number in range(len(peer.items))]
        rows = rows_of(self.episodes, self.rule.credit, None)  # type: ignore[arg-type]
        assert self.rule.rows is not None
        rows += [replace(one, extra=True) for one in self.rule.rows(self.episodes, rows)]
        names = dict.fromkeys(one.turn.policy for one in rows)
        self.lesson = Lesson(self.episodes, {n: self.policies[n].describe(collate(rows, n)) for n in names})
        self.targets = self.rule.advantage(self.lesson, {})[0]

    def _episode(self, number: int) -> Episode:
        problem, turns, joints = Problem(str(number)), list[Turn](), list[Joint]()
        mine = [[s for s in self.peer.samples if s.metadata["batch_item"] is self.peer.items[number] and
                 s.agent_idx == agent] for agent in range(2)]  # fmt: skip
        for t in range(self.peer.setting.turns):
            act = tuple(self._said(problem, role, t, samples[t]) for role, samples in zip(ROLES, mine, strict=True))
            paid = tuple(float(samples[t].reward) for samples in mine)
            joints.append(Joint(act, paid, t - 1 if t else None))
            turns += act
        return Episode(problem, 0, turns, joints)

    @staticmethod
    def _said(problem: Problem, role: str, t: int, sample: Any) -> Turn:
        ids, start = sample.full_input_ids.tolist(), sample.prompt_len
        return answer(problem, role, ids[:start], ids[start : start + sample.response_len], round=t)

    def gradient(self, name: str) -> Tensor:
        return slope(self.policies[name], self.rule, self.lesson.batches[name], self.targets[name])

    def by_turn(self, name: str, of: str) -> Tensor:
        """Advantages of a policy's own turns, or the values that are said of them, in the order of the episodes."""
        if of == "advantage":
            return self.targets[name].adv_BT[~self.lesson.batches[name].extra_B, 0]
        critic = {"own": name, "separate": f"judge {name}", "central": JUDGES[0]}[self.peer.setting.critic]
        batch: Batch = self.lesson.batches[critic]
        assert batch.value_BT is not None
        values_B = batch.value_BT[batch.extra_B, 0]
        return values_B[ROLES.index(name) :: 2] if self.peer.setting.critic == "central" else values_B


def errors(setting: Setting, pair: Pair, folders: list[str]) -> tuple[float, float, float]:
    """The largest relative error of values, of advantages and of a policy's gradient."""
    peer = Peer(setting, pair, folders)
    ours, value, advantage = Ours(peer, folders), 0.0, 0.0
    for agent, name in enumerate(ROLES):
        samples = [s for item in peer.items for s in peer.samples
                   if s.agent_idx == agent and s.metadata["batch_item"] is item]  # fmt: skip
        said = torch.cat([s.old_value.view(-1) for s in samples])
        used = torch.cat([s.normalized_advantage.view(-1) for s in samples])
        value = max(value, distance(said, ours.by_turn(name, "value")))
        advantage = max(advantage, distance(used, ours.by_turn(name, "advantage")))
    gradient = max(distance(theirs, ours.gradient(name)) for name, theirs in peer.gradients().items())
    return value, advantage, gradient


def main() -> int:
    """Print the table; returns the exit code."""
    torch.set_num_threads(1)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        pair = random_pair(Path(folder), PAD, word_prompts(6))
        folders = [str(Path(folder) / kind) for kind in ("qwen2", "llama")]
        table("critic", "value", "turns", "`advantage_normalization`", "discount", "values", "advantages", "gradient")
        for critic in ("own", "separate", "central"):
            for value, turns, normalise, discount in (
                ("v", 1, True, 1.0), ("v", 1, False, 1.0), ("v", 2, True, 1.0), ("v", 2, False, 0.9),
                ("q", 1, True, 1.0), ("q", 2, False, 0.9),
            ):  # fmt: skip
                if (critic, value) == ("central", "q"):
                    continue  # it reads the answers' text, in which no end of a sequence is
                setting = Setting(critic, value, turns, normalise, discount)
                found = errors(setting, pair, folders)
                good &= max(found) < TOLERANCE
                row(critic, value, turns, "on" if normalise else "off", discount, *(f"{x:.0e}" for x in found))
    print(f"\nparity {'holds' if good else 'FAILS'} (tolerance {TOLERANCE:.0e}); the end of a sequence is {EOS}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
