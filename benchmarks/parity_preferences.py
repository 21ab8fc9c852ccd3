"""Our MADPO and MARLHF against comlrl 1.4.3 on the same weights, prompts and sampled tokens, in one process.

    pip install 'coevolve[peers]'
    python benchmarks/parity_preferences.py     # exit code 1 without parity

Its own trainers sample, pay, choose pairs and differentiate; only their optimisers are exchanged for recorders: weights
never move. We take over the tokens and the rewards; pairs, scores, losses and gradients are ours. Of MARLHF it is the
reward model that is compared, which is what it has beyond the trainers of the other scripts; both judges read the same
there, one prompt and the words of all responses. docs/parity.md says what the numbers mean.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parity_comlrl import (  # sets the environment up, so it comes before torch
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
    sampled,
    slope,
    table,
    word_prompts,
    worth,
)

# isort: split
import torch
from comlrl.trainers import preference as peers
from comlrl.trainers.preference.marlhf import JointRewardModel
from torch import Tensor

from coevolve import Episode, Joint, LocalLearner, PolicySpec, Problem
from coevolve.algorithms import madpo, marlhf
from coevolve.collate import collate, rows_of
from coevolve.models.load import load_causal_lm
from coevolve.types import Algorithm, Batch, Lesson

CANDIDATES, TOKENS = 4, 8
SETTINGS = ((1, 0.1), (3, 0.1), (3, 1.0))
"""Pairs of a problem, and beta."""


class Peer:
    """One run of a peer's ``train``: for every problem the prompts, the rows and the rewards; and its trainer."""

    def __init__(self, kind: Any, pair: Pair, **settings: Any) -> None:
        torch.manual_seed(1)
        self.pair, self.tokenizer = pair, pair.tokenizers[ROLES[0]]
        self.prompts: list[list[list[int]]] = [[] for _ in ROLES]
        self.rows: list[list[list[list[int]]]] = [[] for _ in ROLES]
        self.rewards: list[list[float]] = []
        args = kind.default_config_cls(
            num_train_epochs=1, num_agents=len(ROLES), max_new_tokens=TOKENS, temperature=1.0, top_p=1.0, top_k=0,
            external_prompt_passthrough=True, eval_interval=0, train_batch_size=10**6,
            preference_num_candidates=CANDIDATES, **settings,
        )  # fmt: skip
        self.trainer = kind(
            agents=pair.models, num_agents=len(ROLES), tokenizer=list(pair.tokenizers.values()), args=args,
            train_dataset=pair.items, reward_func=self._reward,
        )  # fmt: skip
        self.trainer.optimizers, self.trainer.verbose = [Recorder(model) for model in pair.models], False
        generate = self.trainer._generate_completions_with_external_prompts

        def watched(agent: Any, items: Any, *, agent_idx: int, **how: Any) -> Any:
            found = generate(agent, items, agent_idx=agent_idx, **how)
            self.prompts[agent_idx].append(found["prompt_input_ids"][0].tolist())
            self.rows[agent_idx].append([ids.tolist() for ids in found["completion_input_ids"][0]])
            return found

        pay = self.trainer._compute_rewards

        def paid(*args: Any, **how: Any) -> list[float]:
            self.rewards.append(pay(*args, **how))
            return self.rewards[-1]

        self.trainer._generate_completions_with_external_prompts, self.trainer._compute_rewards = watched, paid

    def train(self) -> None:
        self.trainer.train(suppress_tokens=[self.tokenizer.pad_token_id])  # sampled, it would cut what it stands in

    @staticmethod
    def _reward(first: Sequence[str], second: Sequence[str]) -> list[float]:
        return [worth(texts) for texts in zip(first, second, strict=True)]

    def episodes(self, tokens: Callable[[list[int], int], list[int]]) -> list[Episode]:
        """What was sampled, as ours. tokens: (a row as generated, end of sequence) -> the tokens that are trained."""
        return [
            self._episode(number, member, tokens)
            for number in range(len(self.pair.items))
            for member in range(CANDIDATES)
        ]

    def _episode(self, number: int, member: int, tokens: Callable[[list[int], int], list[int]]) -> Episode:
        problem, eos = Problem(str(number)), self.tokenizer.eos_token_id
        said = [(prompts[number], tokens(rows[number][member], eos))
                for prompts, rows in zip(self.prompts, self.rows, strict=True)]  # fmt: skip
        return together(problem, member, said, self.rewards[number][member])


def together(problem: Problem, member: int, said: Sequence[tuple[list[int], list[int]]], paid: float) -> Episode:
    """An episode of one joint response. said: each agent's prompt and tokens."""
    turns = [answer(problem, role, *one, member) for role, one in zip(ROLES, said, strict=True)]
    return Episode(problem, member, turns, [Joint(tuple(turns), (paid, paid))])


# --- MADPO -----------------------------------------------------------------------------------------------------------


def last_dropped(row: list[int], eos: int) -> list[int]:
    """Defect: logits are cut by one too many, so a response's last token, its end where it has one, does not count."""
    return sampled(row, eos)[:-1]


def documented(trainer: Any, pairs: list[Any]) -> list[Tensor]:
    """Gradients of its own loss on rows that the defect cannot reach: each has one more token for it to drop."""
    for pair in pairs:
        for tensors in pair.agent_tensors:
            for name in ("winner_completion_ids", "loser_completion_ids"):
                kept = trainer._trim_completion_tokens(getattr(tensors, name), trainer.tokenizers[0].pad_token_id)
                setattr(tensors, name, torch.cat([kept, kept[-1:]]))
    for recorder in trainer.optimizers:
        recorder.steps.clear()
    trainer._update_from_preference_batch(pairs)
    return [recorder.steps[-1] for recorder in trainer.optimizers]


def gradients(peer: Peer, rule: Algorithm, tokens: Callable[[list[int], int], list[int]]) -> list[Tensor]:
    """Ours, by agent."""
    episodes, policies, batches = peer.episodes(tokens), peer.pair.policies, dict[str, Batch]()
    rows = rows_of(episodes, rule.credit, None)  # type: ignore[arg-type]
    for role in ROLES:
        batch = collate(rows, role)
        with torch.no_grad():
            batches[role] = batch.replace(logp_BT=policies[role].outputs(batch).logp_BT)
    targets, found = rule.advantage(Lesson(episodes, batches), {})[0], []
    for role in ROLES:
        weight_BT = torch.zeros_like(batches[role].logp_BT)
        weight_BT[:, 0] = 1 / len(weight_BT)  # each row alike, also without a token: ``per_turn`` where all have some
        found.append(slope(policies[role], rule, batches[role], targets[role], weight_BT))
    return found


def preferences(folder: Path, pairs: int, beta: float) -> tuple[float, float, float, float]:
    """Errors of the gradient as theirs is and of that they document; what the defect changes: cosine, size."""
    pair = random_pair(folder, PAD, word_prompts(6))
    peer = Peer(peers.MADPOTrainer, pair, preference_pairs_per_sample=pairs, dpo_beta=beta)
    made, build = list[Any](), peer.trainer._build_preference_dataset
    peer.trainer._build_preference_dataset = lambda **how: made.extend(build(**how)) or made
    peer.train()
    theirs = [torch.stack(recorder.steps).sum(0) for recorder in peer.trainer.optimizers]
    rule = madpo(beta=beta, pairs=pairs, reference=False)
    cut, whole = gradients(peer, rule, last_dropped), gradients(peer, rule, sampled)
    errors = [max(map(distance, theirs, cut)), max(map(distance, documented(peer.trainer, made), whole))]
    one, other = torch.cat(whole), torch.cat(cut)
    cosine = float(torch.nn.functional.cosine_similarity(one, other, dim=0))
    return errors[0], errors[1], cosine, float(other.norm() / one.norm())


# --- MARLHF ----------------------------------------------------------------------------------------------------------


def words(row: list[int], eos: int) -> list[int]:
    """What a text keeps of a response: no end of sequence."""
    return [i for i in sampled(row, eos) if i != eos]


def judged(folder: Path, pairs: int) -> tuple[float, float]:
    """Errors of the reward model's scores, of all candidates, and of its gradient."""
    pair = random_pair(folder, PAD, word_prompts(6))
    peer = Peer(
        peers.MARLHFTrainer, pair, preference_pairs_per_sample=pairs, reward_train_batch_size=10**6,
        reward_model_device="cpu", rollout_buffer_size=64,
    )  # fmt: skip
    trainer, source = peer.trainer, str(folder / "llama")
    begun_with(trainer, lambda: reward_model(trainer, source, peer.tokenizer))
    trainer._train_online_rl = lambda **how: None
    peer.train()
    rule, episodes = marlhf(judge="judge", pairs=pairs), peer.episodes(words)
    spec = PolicySpec(model=source, device="cpu")
    policy = judge(spec, peer.tokenizer, trainer.reward_model.reward_head.state_dict())
    batch = read(policy, rule, episodes)
    texts = [peer.tokenizer.decode(ids[:length]) for ids, length in zip(batch.ids_BS, batch.start_B, strict=True)]
    with torch.no_grad():
        scores = trainer._score_reward_texts(texts)
    assert batch.value_BT is not None
    theirs = torch.stack(trainer.reward_optimizer.steps).sum(0)
    return distance(scores, batch.value_BT[:, 0]), distance(theirs, compared(policy, rule, episodes, batch))


def begun_with(trainer: Any, reward_model: Callable[[], None]) -> None:
    """Have its reward model made so, and read what ours reads: one prompt and the words of all responses."""
    trainer._init_reward_model = reward_model
    trainer._format_joint_text = lambda prompts, said: " ".join((prompts[0], *(text for text in said if text)))


def reward_model(trainer: Any, source: str, tokenizer: Any) -> None:
    """Its reward model of this folder, with a random head, a recorder for an optimiser, and the agents' tokenizer."""
    model = JointRewardModel(load_causal_lm(source))
    torch.nn.init.normal_(model.reward_head.weight, std=0.3)
    trainer.reward_model, trainer.reward_tokenizer, trainer.reward_optimizer = model, tokenizer, Recorder(model)


def judge(spec: PolicySpec, tokenizer: Any, head: Mapping[str, Tensor]) -> LocalLearner:
    """Ours, with their head."""
    policy = built({"judge": spec}, tokenizer, critic=True)["judge"]
    assert policy.value_head is not None
    policy.value_head.load_state_dict(head)
    return policy


def read(policy: LocalLearner, rule: Algorithm, episodes: Sequence[Episode]) -> Batch:
    """What the judge reads of episodes, with its scores."""
    assert rule.rows is not None
    rows = rule.rows(episodes, rows_of(episodes, rule.credit, None))  # type: ignore[arg-type]
    batch = policy.describe(collate(rows, "judge"))
    return batch.replace(extra_B=torch.ones_like(batch.extra_B))


def compared(policy: LocalLearner, rule: Algorithm, episodes: Sequence[Episode], batch: Batch) -> Tensor:
    """The gradient of a judge that learns from the comparisons of these episodes."""
    targets = rule.advantage(Lesson(episodes, {"judge": batch}), rule.start)[0]["judge"]
    return slope(policy, rule, batch, targets)


def main() -> int:
    """Print the tables; returns the exit code."""
    torch.set_num_threads(1)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        print("MADPO\n")
        table("pairs of a problem", "beta", "gradient", "documented", "cosine, defect", "size, defect")
        for pairs, beta in SETTINGS:
            cut, whole, cosine, size = preferences(Path(folder), pairs, beta)
            good &= max(cut, whole) < TOLERANCE
            row(pairs, beta, f"{cut:.0e}", f"{whole:.0e}", f"{cosine:.3f}", f"{size:.2f}")
        print("\nThe reward model of MARLHF\n")
        table("pairs of a problem", "scores", "gradient")
        for pairs in (1, 3):
            scores, gradient = judged(Path(folder), pairs)
            good &= max(scores, gradient) < TOLERANCE
            row(pairs, f"{scores:.0e}", f"{gradient:.0e}")
    print(f"\nparity {'holds' if good else 'FAILS'} (tolerance {TOLERANCE:.0e})")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
