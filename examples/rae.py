"""Role-conditioned advantage estimation (arXiv 2506.24119): a moving baseline for every policy in every role.

One policy in two roles learns from both, and what a role earns on average says nothing about what it did well. So the
baseline is the role's own: the mean of its past returns. It is kept in the state, which a checkpoint holds.
"""

from dataclasses import replace

import torch

from coevolve import Algorithm, Lesson, PolicySpec, Sampling, Targets, Trainer, chain, fixed, mareinforce
from coevolve.tasks import Game


def rae(*, decay: float = 0.95, credit="own_return") -> Algorithm:
    """REINFORCE against a moving mean. decay: how much of the old mean is kept at each step."""

    def advantage(lesson: Lesson, state):
        baselines, targets = dict(state.get("baselines", {})), {}
        for name, batch in lesson.batches.items():
            adv_B = torch.zeros_like(batch.credit_B)
            for number, role in enumerate(batch.roles):
                mine_B, agent = batch.role_B == number, f"{name} as {role}"
                if mine_B.any():
                    before = baselines.get(agent, 0.0)  # of earlier steps only: so it biases nothing
                    adv_B[mine_B] = batch.credit_B[mine_B] - before
                    baselines[agent] = decay * before + (1 - decay) * float(batch.credit_B[mine_B].mean())
            targets[name] = Targets(adv_B[:, None] * batch.mask_BT)
        return targets, {**state, "baselines": baselines}

    made = mareinforce(credit=credit)
    return replace(made, advantage=advantage, settings={**made.settings, "decay": decay})


if __name__ == "__main__":  # run as a program; a recipe imports the file and takes rae only
    trainer = Trainer(
        task=Game(game="harmony"),
        play=chain(),
        cast=fixed({"first": "ann", "second": "ann"}),
        policies={"ann": PolicySpec("coevolve-coin", learning_rate=0.05)},
        algorithm=rae(decay=0.8),
        sampling=Sampling(max_new_tokens=1),
        steps=30,
        batch_size=16,
    )
    trainer.run("runs/rae")
