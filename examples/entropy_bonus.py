"""An entropy bonus: any algorithm with a term in its loss that keeps the policy from making up its mind too early."""

from dataclasses import replace
from functools import partial

from coevolve import Algorithm, PolicySpec, Sampling, Trainer, fixed, magrpo, rounds
from coevolve.tasks import Game


def curious_magrpo(*, bonus: float = 0.01, **settings) -> Algorithm:
    """MAGRPO whose loss is less by ``bonus`` times the entropy, in nats, of each token's distribution."""
    made = magrpo(**settings)
    loss = partial(_curious, made.objective.loss, bonus)
    return replace(made, objective=replace(made.objective, loss=loss), settings={**made.settings, "bonus": bonus})


def _curious(plain, bonus, out, batch, targets, weight_BT):  # not inside a function: ranks would not find it there
    total, metrics = plain(out, batch, targets, weight_BT)
    term = -(out.entropy_BT * weight_BT).sum()  # entropy_BT is differentiable, and 0 outside the mask
    return total + bonus * term, {**metrics, "loss/entropy": term.detach()}


if __name__ == "__main__":  # run as a program; a recipe imports the file and takes curious_magrpo only
    coin = PolicySpec("coevolve-coin", learning_rate=0.05)
    trainer = Trainer(
        task=Game(game="chicken"),
        play=rounds(),
        cast=fixed({"first": "ann", "second": "bob"}),
        policies={"ann": coin, "bob": coin},
        algorithm=curious_magrpo(bonus=0.5),
        sampling=Sampling(max_new_tokens=1),
        steps=30,
        batch_size=4,
        members=4,
    )
    trainer.run("runs/entropy-bonus")
