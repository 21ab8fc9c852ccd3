"""MARLHF from end to end against comlrl 1.4.3: the reward model as it was trained, then the agents' step on its scores.

    pip install 'coevolve[peers]'
    python benchmarks/parity_marlhf.py     # exit code 1 without parity

Its trainer runs whole: it samples candidates, trains its reward model by its own AdamW, samples again, scores and
differentiates. The agents' optimisers are exchanged for recorders, as in the other scripts, the reward model's is not.
Ours trains a judge on the same comparisons by the same number of steps and takes the second phase's tokens over;
scores, advantages and gradients are ours. Three things of theirs are done to ours: what a MAGRPO loss counts as tokens
(``as_scored``), what normalising leaves of a baseline (``recentred``), and the bias of the reward model's head, which
comparisons say nothing of: its gradient is rounding, of which AdamW makes whole steps. One thing of ours is done to
theirs: the reward model reads one prompt and the words of all responses. docs/parity.md has the numbers.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

from parity_comlrl import (  # sets the environment up, so it comes before torch
    PAD,
    ROLES,
    TOLERANCE,
    Peer,
    Recorder,
    Tokens,
    as_scored,
    distance,
    random_pair,
    recentred,
    row,
    slope,
    table,
    word_prompts,
)
from parity_preferences import CANDIDATES, TOKENS, begun_with, compared, judge, read, reward_model, together, words
from parity_preferences import Peer as Comparing

# isort: split
import torch
from comlrl.trainers import preference as peers
from torch import Tensor

from coevolve import Episode, LocalLearner, PolicySpec, Problem
from coevolve.algorithms import marlhf
from coevolve.collate import collate, rows_of
from coevolve.types import Algorithm, Lesson

MEMBERS = 3
PAIRS, EPOCHS, RATE, DECAY = 3, 4, 1e-2, 0.01
"""Of a problem; over them; and AdamW's, whose decay is its own default there."""
SETTINGS = (
    ("magrpo", False),
    ("magrpo", True),
    ("marloo", False),
    ("marloo", True),
    ("maremax", False),
    ("mareinforce", False),
)
"""What the agents learn by, and ``advantage_normalization``."""


class Learning(Comparing):
    """One run of ``MARLHFTrainer.train``, both phases; ``samples`` are the nodes that agents were trained on."""

    def __init__(self, folder: Path, algorithm: str, normalise: bool) -> None:
        super().__init__(
            peers.MARLHFTrainer, random_pair(folder, PAD, word_prompts(6)), preference_pairs_per_sample=PAIRS,
            reward_train_batch_size=10**6, reward_num_train_epochs=EPOCHS, reward_learning_rate=RATE,
            reward_model_device="cpu", rollout_buffer_size=64, num_generations=MEMBERS, rl_algorithm=algorithm,
            advantage_normalization=normalise, early_termination_threshold=None,
        )  # fmt: skip
        self.samples: list[list[Any]] = [[] for _ in ROLES]
        trainer, source, process = self.trainer, str(folder / "llama"), self.trainer._process_buffer

        def watched(agent: int, buffer: list[Any]) -> Any:
            self.samples[agent] += buffer
            return process(agent, buffer)

        def begun() -> None:
            reward_model(trainer, source, self.tokenizer)
            self.head = {name: tensor.clone() for name, tensor in trainer.reward_model.reward_head.state_dict().items()}
            trainer.reward_optimizer = torch.optim.AdamW(trainer.reward_model.parameters(), lr=RATE)

        trainer._process_buffer = watched
        begun_with(trainer, begun)
        self.source = source
        self.train()

    def second(self, tokens: Tokens) -> list[Episode]:
        """The agents' episodes of the second phase; what they were paid there is the reward model's score."""
        found, eos = [], self.tokenizer.eos_token_id
        for number, nodes in enumerate(zip(*self.samples, strict=True)):
            data = [node.completions_data for node in nodes]
            for member in range(MEMBERS):
                said = [(one["prompt_input_ids"][0].tolist(),
                         tokens(one["completion_input_ids"][0][member].tolist(), eos)) for one in data]  # fmt: skip
                found.append(together(Problem(str(number)), member, said, float(nodes[0].returns[member])))
        return found

    def advantages(self, agent: int) -> Tensor:
        """What its loss multiplies each row's log-probability with; shape B."""
        used = [Peer.used(self, node.returns) for node in self.samples[agent]]  # type: ignore[arg-type]
        return torch.cat(used)

    @property
    def setting(self) -> Any:
        """What ``Peer.used`` asks for."""
        return dataclasses.make_dataclass("Setting", ["k"])(MEMBERS)


def judge_of(peer: Learning, rule: Algorithm) -> tuple[LocalLearner, float]:
    """Our judge after as many steps on the comparisons of the first phase, and how far apart the two biases got."""
    spec = PolicySpec(model=peer.source, device="cpu", learning_rate=RATE, weight_decay=DECAY)
    policy = judge(spec, peer.tokenizer, peer.head)
    optimizer = torch.optim.AdamW(policy.parameters, lr=RATE, weight_decay=DECAY)
    episodes = peer.episodes(words)
    for _ in range(EPOCHS):
        compared(policy, rule, episodes, read(policy, rule, episodes))
        optimizer.step()
    assert policy.value_head is not None
    bias, theirs = policy.value_head.bias.data, peer.trainer.reward_model.reward_head.bias.data
    apart = float((bias - theirs).abs())
    bias.copy_(theirs)
    return policy, apart


def errors(folder: Path, algorithm: str, normalise: bool) -> tuple[float, float, float, float]:
    """Relative errors of scores, and of the worse agent's advantages and gradient; and ``judge_of``'s second."""
    peer = Learning(folder, algorithm, normalise)
    std = "group" if normalise and algorithm == "magrpo" else "none"
    rule = marlhf(judge="judge", agents={"name": algorithm, "std": std}, pairs=PAIRS)
    policy, apart = judge_of(peer, rule)
    judged = read(policy, rule, peer.second(words))
    assert judged.value_BT is not None
    paid = torch.tensor([episode.joints[0].rewards[0] for episode in peer.second(words)])
    episodes = peer.second(as_scored)
    batches = {role: collate(rows_of(episodes, rule.credit, None), role) for role in ROLES}  # type: ignore[arg-type]
    every = {role: batch.replace(mask_BT=torch.ones_like(batch.mask_BT)) for role, batch in batches.items()}
    targets = rule.advantage(Lesson(episodes, {**every, "judge": judged}), rule.start)[0]
    advantage, gradient = 0.0, 0.0
    for agent, role in enumerate(ROLES):
        batch, adv_B = batches[role], targets[role].adv_BT[:, 0]
        if normalise and algorithm != "magrpo":
            adv_B = recentred(adv_B, batch.peers_B)
        advantage = max(advantage, distance(peer.advantages(agent), adv_B))
        aims = dataclasses.replace(targets[role], adv_BT=adv_B[:, None] * batch.mask_BT)
        theirs = torch.stack(recorded(peer, agent).steps).sum(0)
        gradient = max(gradient, distance(theirs, slope(peer.pair.policies[role], rule, batch, aims)))
    return distance(paid, judged.value_BT[:, 0]), advantage, gradient, apart


def recorded(peer: Learning, agent: int) -> Recorder:
    found: Recorder = peer.trainer.optimizers[agent]
    return found


def main() -> int:
    """Print the table; returns the exit code."""
    torch.set_num_threads(1)
    good = True
    print(f"{CANDIDATES} candidates, {PAIRS} pairs a problem, {EPOCHS} steps of the reward model; then groups of "
          f"{MEMBERS}, responses of at most {TOKENS} tokens\n")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        table("`rl_algorithm`", "`advantage_normalization`", "scores", "advantages", "gradient", "biases apart")
        for algorithm, normalise in SETTINGS:
            *found, apart = errors(Path(folder), algorithm, normalise)
            good &= max(found) < TOLERANCE
            row(algorithm, "on" if normalise else "off", *(f"{x:.0e}" for x in (*found, apart)))
    print(f"\nparity {'holds' if good else 'FAILS'} (tolerance {TOLERANCE:.0e})")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
