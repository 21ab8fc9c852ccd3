"""Further rows to learn from: what the observer of a chain answered is learnt under the bare prompt too.

An observer reads the pioneer before it answers, and what it learns there is of no use to a policy that is later asked
alone. With one policy in both roles, each of its answers becomes a second row that stands behind the pioneer's prompt.
Its log-probabilities are those it was sampled with, behind the longer prompt, so the ratio in the loss is the
importance weight, and the row's gradient is the policy gradient of answering alone.
"""

from dataclasses import replace

from coevolve import Algorithm, PolicySpec, Sampling, Trainer, chain, fixed, mareinforce
from coevolve.tasks import Game

_MOST = 2.0  # log of the largest importance weight


def answered_alone(*, credit="own_reward") -> Algorithm:
    """REINFORCE with own rewards; every observer's answer is learnt from twice. For a chain of two roles."""

    def rows(episodes, rows):
        bare = {row.episode: row.turn.prompt_ids for row in rows if not row.turn.heard}
        heard = [row for row in rows if row.turn.heard]
        return [
            replace(row, turn=replace(row.turn, prompt_ids=bare[row.episode], peers=(*row.turn.peers, "bare")))
            for row in heard
        ]

    made = mareinforce(credit=credit)
    return replace(made, rows=rows, objective=replace(made.objective, loss=_loss))


def _loss(out, batch, targets, weight_BT):
    ratio_B = (out.logp_BT - batch.logp_BT).sum(1).clamp(max=_MOST).exp()  # of whole answers; 1 where sampled here
    total = -(ratio_B[:, None] * targets.adv_BT * weight_BT / batch.mask_BT.sum(1, keepdim=True)).sum()
    return total, {"loss/policy": total.detach()}


if __name__ == "__main__":  # run as a program; a recipe imports the file and takes answered_alone only
    trainer = Trainer(
        task=Game(game="harmony"),
        play=chain(),
        cast=fixed({"pioneer": "ann", "observer": "ann"}),
        policies={"ann": PolicySpec("coevolve-coin", learning_rate=0.05)},
        algorithm=answered_alone(),
        sampling=Sampling(max_new_tokens=1),
        steps=30,
        batch_size=16,
    )
    trainer.run("runs/bare-prompt")
