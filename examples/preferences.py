"""Direct preference optimisation (arXiv 2305.18290) over joint responses: of two members, the team that was paid more.

The likelihood of a joint response is the product of its agents'. So a pair's margin is a sum over agents, of which an
agent moves its own part and takes the others' as they were when the step began.
"""

import torch
from torch.nn.functional import logsigmoid

from coevolve import Algorithm, Lesson, Objective, PolicySpec, Sampling, Targets, Trainer, fixed, rounds
from coevolve.credit import team_return
from coevolve.maths.loss_aggregation import per_turn
from coevolve.tasks import Game


def joint_dpo(*, beta: float = 0.1, epochs: int = 1, minibatch: int | None = None) -> Algorithm:
    """DPO on pairs of members. beta: strength of the pull to the start model. Play with ``members: 2``."""

    def advantage(lesson: Lesson, state):
        episodes, targets = torch.zeros(len(lesson.episodes)), {}
        for batch in lesson.batches.values():  # log pi - log pi_0 of everything that the team said in an episode
            episodes.index_add_(0, batch.episode_B, (batch.logp_BT - batch.logp_ref_BT).sum(1))
        for name, batch in lesson.batches.items():
            same_BB = batch.peers_B[:, None] == batch.peers_B
            sign_B = torch.sign(batch.credit_B - (same_BB * batch.credit_B).sum(1) / same_BB.sum(1))
            others_B = sign_B * (episodes[batch.episode_B] - (batch.logp_BT - batch.logp_ref_BT).sum(1))
            columns = {"others_B": (same_BB * others_B).sum(1)}
            targets[name] = Targets(sign_B[:, None] * batch.mask_BT, columns=columns)  # 1 chosen, -1 rejected, 0 a tie
        return targets, state

    def loss(out, batch, targets, weight_BT):
        own_B = ((out.logp_BT - batch.logp_ref_BT) * targets.adv_BT).sum(1)
        same_BB = (batch.peers_B[:, None] == batch.peers_B).to(own_B.dtype)
        margin_B = same_BB @ own_B + targets.columns["others_B"]  # the same for both rows of a pair
        compared_B = (targets.adv_BT != 0).any(1) * weight_BT.sum(1)
        total = -(logsigmoid(beta * margin_B) * compared_B).sum()
        return total, {"loss/preference": total.detach()}

    objective = Objective(loss, per_turn, epochs, minibatch, together="peers")
    settings = {"beta": beta, "epochs": epochs, "minibatch": minibatch}
    return Algorithm(team_return(), advantage, objective, reference=True, settings=settings)


if __name__ == "__main__":  # run as a program; a recipe imports the file and takes joint_dpo only
    coin = PolicySpec("coevolve-coin", learning_rate=0.05)
    trainer = Trainer(
        task=Game(game="chicken"), play=rounds(), cast=fixed({"first": "ann", "second": "bob"}),
        policies={"ann": coin, "bob": coin}, algorithm=joint_dpo(), sampling=Sampling(max_new_tokens=1),
        steps=30, batch_size=16, members=2,
    )  # fmt: skip
    trainer.run("runs/preferences")
