"""A baseline from the whole team's episodes: a turn is compared with what others earned beside the same partners.

What the partners did is luck to an agent that speaks at the same time. So a turn's baseline is the mean return of the
other members in which its partners said the same, or of all other members where they never did. Nothing of the turn's
own doing is in it, so it biases nothing, and it takes the partners' luck out.
"""

from dataclasses import replace
from statistics import fmean

import torch

from coevolve import Algorithm, Lesson, PolicySpec, Sampling, Targets, Trainer, fixed, mareinforce, rounds
from coevolve.tasks import Game


def against_same_partners(*, credit="team_return") -> Algorithm:
    """REINFORCE against other members with the same partners, for plays in which everybody speaks at once, once."""

    def advantage(lesson: Lesson, state):
        said = [{turn.role: turn.text for turn in episode.turns} for episode in lesson.episodes]
        problems = [episode.problem.id for episode in lesson.episodes]
        targets = {}
        for name, batch in lesson.batches.items():
            rows = [
                (episode, batch.roles[role], credit)
                for episode, role, credit in zip(
                    batch.episode_B.tolist(), batch.role_B.tolist(), batch.credit_B.tolist(), strict=True
                )
            ]
            adv_B = []
            for episode, role, credit in rows:
                others = [(e, c) for e, r, c in rows if r == role and e != episode and problems[e] == problems[episode]]
                mine = {**said[episode], role: ""}
                alike = [c for e, c in others if {**said[e], role: ""} == mine]
                adv_B.append(credit - fmean(alike or [c for _, c in others] or [credit]))
            targets[name] = Targets(torch.tensor(adv_B)[:, None] * batch.mask_BT)
        return targets, state

    return replace(mareinforce(credit=credit), advantage=advantage)


if __name__ == "__main__":  # run as a program; a recipe imports the file and takes against_same_partners only
    coin = PolicySpec("coevolve-coin", learning_rate=0.05)
    trainer = Trainer(
        task=Game(game="chicken"), play=rounds(), cast=fixed({"first": "ann", "second": "bob"}),
        policies={"ann": coin, "bob": coin}, algorithm=against_same_partners(), sampling=Sampling(max_new_tokens=1),
        steps=30, batch_size=8, members=4,
    )  # fmt: skip
    trainer.run("runs/partner-baseline")
