"""Preferences instead of rewards: a comparator of one's own says which of two joint responses is better.

``madpo`` learns from pairs of members by direct preference optimisation (arXiv 2305.18290), the credit ``compared``
asks the comparator about them, in both orders. The task's own reward is measured as ever, and not learnt from.
"""

from coevolve import PolicySpec, Sampling, Trainer, fixed, madpo, rounds
from coevolve.credit import compared
from coevolve.tasks import Game


def kinder(problem, first, second):
    """Above 0 where the first one is better: more of the team said C. problem: columns; the others role -> text."""
    cooperated = [sum(text.upper() == "C" for text in texts.values()) for texts in (first, second)]
    return cooperated[0] - cooperated[1]


if __name__ == "__main__":  # run as a program; a recipe imports the file and takes kinder only
    coin = PolicySpec("coevolve-coin", learning_rate=0.05)
    trainer = Trainer(
        task=Game(game="chicken"), play=rounds(), cast=fixed({"first": "ann", "second": "bob"}),
        policies={"ann": coin, "bob": coin}, algorithm=madpo(credit=compared(by=kinder)),
        sampling=Sampling(max_new_tokens=1), steps=30, batch_size=16, members=2,
    )  # fmt: skip
    trainer.run("runs/preferences")
