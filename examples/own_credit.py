"""A credit rule of your own: what each turn of an episode is held responsible for."""

from coevolve import Episode, PolicySpec, Trainer, by_episode, chain, cory, exchange
from coevolve.tasks import Sentiment
from coevolve.types import Credit


def neighbourly(*, share: float = 0.5) -> Credit:
    """Every turn answers for its own reward and for a share of what the others were paid."""

    def credit(episode: Episode) -> list[float]:
        paid = [turn.reward or 0.0 for turn in episode.turns]  # None: nobody scored it
        return [own + share * (sum(paid) - own) for own in paid]

    return by_episode(credit)


if __name__ == "__main__":  # run as a program; a recipe imports the file and takes neighbourly only
    start = PolicySpec("coevolve-tiny", learning_rate=3e-4)
    trainer = Trainer(
        task=Sentiment(),
        play=chain(),
        cast=exchange({"pioneer": "ann", "observer": "bob"}),
        policies={"ann": start, "bob": start},
        algorithm=cory(credit=neighbourly(share=0.3), eta=1.0),
        steps=30,
        batch_size=16,
    )
    trainer.run("runs/own-credit")
